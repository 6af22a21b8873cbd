"""From the options of ``headrace run`` and ``headrace retry`` to a run that is ready. Imports what a run needs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.cli.columns import choose, one_of
from headrace.cli.fallbacks import given_fallbacks, make_fallbacks
from headrace.cli.handlers import parse_arguments
from headrace.cli.inputs import columns_of, contents_of, examples_of, read_inputs, refuse_reserved
from headrace.cli.option import option_names
from headrace.cli.options import NAMED, RetryArgs, RunArgs
from headrace.cli.recognition import Recognised, handler_of
from headrace.cli.summary import PROCESS_START
from headrace.core.config import Budget, Price
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_folder_name
from headrace.core.secrets import MASK, SECRET_ARGUMENTS
from headrace.jobs.files import Source, stamp
from headrace.jobs.job import Job
from headrace.jobs.run import Run, without_options

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
            placement=args.placement.value if args.placement else None,
            budget=budget_of(args),
            stop_at=None if args.stop_after is None else max(PROCESS_START + args.stop_after, time.monotonic() + 1),
            resume=deciding(sources) if args.resume else None,
            folder=deciding(()) if isinstance(args, RunArgs) and is_folder_name(args.output) else None,
            output_format=args.output_format and args.output_format.value,
            options=() if len(inputs) == len(args.arguments) else tuple(args.arguments),
        )
    )
    return run, [note for note in (known and known.line(args, columns), *run.notes) if note]


def _kept_columns(args: RunArgs | RetryArgs, columns: Sequence[str]) -> tuple[str, ...] | None:
    keep = choose("--keep", args.keep, columns)
    refuse_reserved(columns if keep is None else keep)
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
