"""From the options of a command to its inputs, and to a run that is ready. Imports what a run needs."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.cli.columns import choose, one_of
from headrace.cli.display import PROCESS_START
from headrace.cli.handlers import import_object, parse_arguments
from headrace.cli.option import option_names
from headrace.cli.options import NAMED, DoctorArgs, ModelArgs, RetryArgs, RunArgs
from headrace.cli.recognition import Recognised, handler_of
from headrace.cli.words import given_fallbacks, make_fallbacks
from headrace.core.config import Budget, Price
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_folder_name
from headrace.core.secrets import MASK, SECRET_ARGUMENTS
from headrace.core.spelling import did_you_mean
from headrace.jobs import files
from headrace.jobs.csv_records import CELL_TYPES
from headrace.jobs.files import Source, stamp
from headrace.jobs.job import Job
from headrace.jobs.letters import columns_of_lines, match_dead_letters, schema_of_letters
from headrace.jobs.reading import InputSchema, infer_schema
from headrace.jobs.run import Run, without_options
from headrace.rows.examples import RESERVED, Examples
from headrace.rows.files import Contents

_AS_GIVEN = (
    *("dead_letters", "explode", "isolate", "timeout", "cache", "threshold", "limit", "workers", "runner"),
    *("changed_since", "cause"),
)
"""Options that a job has under the same name."""
_NOWHERE = ".headrace-dry-run.jsonl"
"""The output of a dry run that names none; it is never written."""


def prepare(args: RunArgs | RetryArgs, known: Recognised | None) -> tuple[Run, list[str]]:
    """Makes a run of options, and of what is known of the model's file; and what to say before it."""
    inputs, output = _given_inputs(args), _output(args)
    handler = handler_of(args, known)
    sources, head = read_inputs(args, inputs)
    keep = _kept_columns(args, head.columns)
    columns = columns_of(args, handler, head, known)
    deciding = partial(decisive, args, columns=columns, keep=keep, types=head.csv)
    given: dict[str, Any] = {name: getattr(args, name, None) for name in _AS_GIVEN}
    run = Run(
        Job(
            **given,
            handler=handler,
            fallback=make_fallbacks(args),
            sources=sources,
            output=output,
            into=args.into is not None,
            examples=examples_of(args, head, columns),
            types=head.csv,
            contents=contents_of(args, head, columns),
            keep=keep,
            inference_args=parse_arguments("--inference-arg", args.inference_args) or None,
            batch_sizes=_batch_sizes(args),
            length_column=one_of("--length-column", args.length_column, head.columns),
            placement=args.placement,
            budget=budget_of(args),
            stop_at=None if args.stop_after is None else max(PROCESS_START + args.stop_after, time.monotonic() + 1),
            resume=deciding(sources) if args.resume else None,
            folder=deciding(()) if isinstance(args, RunArgs) and is_folder_name(args.output) else None,
            output_format=args.output_format,
            options=() if len(inputs) == len(args.arguments) else tuple(args.arguments),
        )
    )
    return run, [note for note in (known and known.line(args, columns), *run.notes) if note]


def _kept_columns(args: RunArgs | RetryArgs, columns: Sequence[str]) -> tuple[str, ...] | None:
    keep = choose("--keep", args.keep, columns)
    for name in set(RESERVED).intersection(columns if keep is None else keep):
        raise ConfigurationError(
            f"the input has a column {name!r}, where the prediction goes; name the columns to keep with --keep."
        )
    return keep


def budget_of(args: RunArgs | RetryArgs) -> Budget | None:
    """The budget that a command line gives; None if it gives none."""
    has_limit, per_row = args.budget is not None or args.budget_tokens is not None, args.budget_per_row
    if not has_limit and not args.prices and per_row is None:
        return None
    for option, given in (("--budget", args.budget), ("--budget-per-row", per_row)):
        if given is not None and not args.prices:
            raise ConfigurationError(f"{option} needs --price MODEL=INPUT,OUTPUT: Headrace knows no prices.")
    budget = Budget(args.budget, dict(map(_priced, args.prices or ())), args.budget_tokens, per_row)
    if has_limit and not args.resume and args.cache is None:
        raise ConfigurationError(
            "--budget and --budget-tokens go with --resume or --cache: without these, what was paid for is lost when "
            "the budget is spent."
        )
    return budget


def decisive(
    args: RunArgs | RetryArgs,
    sources: Sequence[Source],
    *,
    columns: Sequence[str] | None,
    keep: Sequence[str] | None,
    types: Mapping[str, str],
) -> dict[str, Any]:
    """What decides the predictions, and so must be the same when a run goes on from an earlier one.

    Batch sizes, workers, placement, time limits, keys and the runner may change. The values are by the user's names
    for them.
    """
    arguments: dict[str, Any] = {"--model": args.model} if args.model is not None else {}
    arguments |= {f"--{name.replace('_', '-')}": value for name in NAMED if (value := getattr(args, name)) is not None}
    for option, pairs in (("--handler-arg", args.handler_args), ("--inference-arg", args.inference_args)):
        arguments |= _without_secrets(option, parse_arguments(option, pairs))
    for number, fallback in enumerate(given_fallbacks(args), start=1):
        which = f" of fallback {number}" if number > 1 else ""
        arguments |= {f"--fallback{which}": fallback.name, f"--fallback-model{which}": fallback.model}
        arguments |= _without_secrets(f"--fallback-arg{which}", fallback.arguments)
    return {
        "command": args.command,
        "the files": [source.path for source in sources],
        **{f"the file {source.path}": [*source[1:4], source.files or _stamp(source.path)] for source in sources},
        "--handler": args.handler,
        **{name: [value, _stamp(value)] for name, value in arguments.items()},
        "--columns": columns,
        "--decode": args.decode,
        "--keep": keep,
        **({"--explode": True} if args.explode else {}),
        **({"--cause": cause} if (cause := getattr(args, "cause", None)) else {}),
        "--key": args.key,
        "the types of CSV columns (--types)": types,
    }


def _given_inputs(args: RunArgs | RetryArgs) -> tuple[str, ...]:
    inputs = without_options(args.arguments, option_names(type(args)))
    for name in SECRET_ARGUMENTS.intersection(word.partition("=")[0] for word in inputs if "=" in word):
        raise ConfigurationError(f"there is no file '{name}={MASK}'; repeat the option: --handler-arg {name}={MASK}.")
    if not inputs:
        name = "DEAD_LETTERS" if isinstance(args, RetryArgs) else "INPUT"
        raise ConfigurationError(f"no {name} is given; name at least one file or glob.")
    return inputs


def _output(args: RunArgs | RetryArgs) -> str:
    if args.output is not None and args.into is not None:
        raise ConfigurationError("--output is a new file, and --into one that is there; name one of the two.")
    if (path := args.output or args.into) is not None:
        return path
    if args.dry_run:
        return _NOWHERE
    raise ConfigurationError(
        "Missing option '--output': name the file for the predictions, for example --output predictions.jsonl"
        f"{'' if isinstance(args, RunArgs) else '; or with --into the output that the dead letters are of'}."
    )


def _batch_sizes(args: RunArgs | RetryArgs) -> dict[str, int]:
    fewest = args.max_batch_size if args.min_batch_size is None and args.batch_directory else args.min_batch_size
    sizes = {"min_batch_size": fewest, "max_batch_size": args.max_batch_size}
    return {name: size for name, size in sizes.items() if size is not None}


def _priced(pair: str) -> tuple[str, Price]:
    model, equals, given = pair.rpartition("=")
    amounts = given.strip("[] ").split(",")
    try:
        costs = [float(amount) for amount in amounts]
    except ValueError:
        costs = []
    if not (model and equals and len(costs) in (2, 3, 4)):
        raise ConfigurationError(
            f"--price takes MODEL=INPUT,OUTPUT, perhaps with ,REQUEST or ,REQUEST,CACHED: what a million tokens of "
            f"prompts and of answers cost, a request, and a million tokens of prompts from a cache; not {pair!r}."
        )
    return model, Price(*costs)


def _without_secrets(option: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{option} {name}": value for name, value in given.items() if name not in SECRET_ARGUMENTS}


def _stamp(value: Any) -> Any:
    """What tells whether the file that a value names is still the same; None for any other value.

    None for a folder, too: its time changes with whatever is cached there.
    """
    with suppress(OSError, ValueError):
        return stamp(value) if isinstance(value, str) and not os.path.isdir(value) else None
    return None


def read_inputs(args: RunArgs | RetryArgs, paths: Sequence[str]) -> tuple[tuple[Source, ...], InputSchema]:
    """The files that a command line names, and the types of their columns."""
    if isinstance(args, RetryArgs):
        sources = match_dead_letters(paths)
        types = _asked_types(args.types, columns_of_lines(sources)) if args.types else {}
        return sources, schema_of_letters(sources, types)
    sources = files.match(paths, args.file_format, args.delimiter)
    return sources, schema_of(args, sources)


def schema_of(args: RunArgs | DoctorArgs, sources: Sequence[Source]) -> InputSchema:
    """The columns of files, with the types that the options set."""
    head = infer_schema(sources)
    if args.types and not any(source.format == "csv" for source in sources):
        raise ConfigurationError(
            "--types sets the types of CSV files; JSON lines and Parquet state theirs: convert the column there."
        )
    columns = tuple(head.csv) or head.columns
    asked = _asked_types(args.types, columns)
    for column in choose("--text-columns", args.text_columns, columns) or ():
        if asked.setdefault(column, "str") != "str":
            raise ConfigurationError(
                f"column {column!r} is {asked[column]} in --types, and in --text-columns; choose one."
            )
    return head._replace(csv={**head.csv, **asked})


def columns_of(
    args: RunArgs | RetryArgs | DoctorArgs, handler: Any, head: InputSchema, known: Recognised | None
) -> tuple[str, ...] | None:
    """The columns that the model sees; None: all, but for the content of files. The prompt's are among them."""
    every = (*head.columns, *head.content)
    columns = choose("--columns", args.columns, every)
    if columns == ():
        raise ConfigurationError("--columns names no column; leave it out if the model is to see all of them.")
    if columns is not None and known is not None:
        known.refuse_few(columns)
    of_prompt = getattr(handler, "columns_of_rows", None)  # the user's own may do with prompts and rows what it likes
    asked = of_prompt() if of_prompt is not None and getattr(args, "prompt", None) is not None else None
    asked = choose("--prompt", asked, columns or every)
    if columns is None and not set(head.content).isdisjoint(asked or ()):
        columns = every
    elif columns is None and args.decode is not None and head.content:
        columns = head.content
    elif columns is None and known is not None:
        columns = known.columns(head)
    seen = columns or head.columns
    if ":" not in (args.handler or "") and (refuse := getattr(handler, "refuse_columns", None)) is not None:
        refuse(seen)
    return columns


def examples_of(args: ModelArgs, head: InputSchema, columns: tuple[str, ...] | None) -> Examples:
    """How the handler's examples are made of the columns that the model is given; None: all. --decode makes one."""
    is_example = args.decode is not None and columns == head.content
    key = one_of("--key", args.key or None, head.columns)
    return Examples(columns, head.columns, key, head.types, bare=is_example)


def contents_of(args: ModelArgs, head: InputSchema, columns: Sequence[str] | None) -> Contents | None:
    """How the contents of files are read; None if the columns that the model is given have none."""
    if not set(head.content) & set(columns or ()):
        if args.decode is not None:
            cure = "add --columns content" if head.content else "add --format files"
            raise ConfigurationError(f"--decode makes the column content of a file's bytes; {cure}.")
        return None
    if args.decode is not None:
        return Contents(import_object(args.decode, "--decode"))
    return Contents(codecs.decode if getattr(args, "prompt", None) is not None else None)


def _asked_types(asked: Iterable[str] | None, columns: Sequence[str]) -> dict[str, str]:
    """The types that ``COLUMN=TYPE,...`` sets; ``columns`` as for ``choose``."""
    chosen: dict[str, str] = {}
    for pair in (pair.strip() for given in asked or () for pair in given.split(",")):
        name, _, kind = pair.rpartition("=")
        if not name or kind not in CELL_TYPES:
            end = did_you_mean(kind, CELL_TYPES) if name else "; it takes COLUMN=TYPE."
            raise ConfigurationError(f"--types: {pair!r} names no type{end}")
        for column in choose("--types", [name], columns) or ():
            if chosen.setdefault(column, kind) != kind:
                raise ConfigurationError(f"--types: column {column!r} is {kind} and {chosen[column]}; choose one.")
    return chosen
