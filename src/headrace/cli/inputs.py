"""What the inputs are, which types their columns have, and what of a row the model gets."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.cli.columns import choose, one_of
from headrace.cli.handlers import import_object
from headrace.cli.options import DoctorArgs, ModelArgs, RetryArgs, RunArgs
from headrace.cli.recognition import Recognised
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import did_you_mean
from headrace.jobs import files
from headrace.jobs.csv_records import CELL_TYPES
from headrace.jobs.files import Source
from headrace.jobs.letters import columns_of_lines, match_dead_letters, schema_of_letters
from headrace.jobs.reading import InputSchema, infer_schema
from headrace.rows.examples import RESERVED, Examples
from headrace.rows.files import Contents


def read_inputs(args: RunArgs | RetryArgs, paths: Sequence[str]) -> tuple[tuple[Source, ...], InputSchema]:
    """The files that a command line names, and the types of their columns."""
    if isinstance(args, RetryArgs):
        sources = match_dead_letters(paths)
        types = _asked_types(args.types, columns_of_lines(sources)) if args.types else {}
        return sources, schema_of_letters(sources, types)
    sources = files.match(paths, args.file_format and args.file_format.value, args.delimiter)
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


def refuse_reserved(columns: Sequence[str]) -> None:
    """Raises ConfigurationError if a column of the input is where the prediction goes."""
    for name in set(columns).intersection(RESERVED):
        cure = "name the columns to keep with --keep."
        raise ConfigurationError(f"the input has a column {name!r}, where the prediction goes; {cure}")


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
