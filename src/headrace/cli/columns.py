"""Which columns ``--columns``, ``--keep``, ``--types`` and ``--text-columns`` mean."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from headrace.cli.objects import import_object
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import did_you_mean, nearest

if TYPE_CHECKING:
    from headrace.cli.file_options import FileArgs, TypeArgs
    from headrace.jobs.files import Source
    from headrace.jobs.reading import InputSchema

_MOST_LISTED = 20


def choose(option: str, asked: Iterable[str] | None, columns: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that names and globs mean: names in the order given, those of a glob in the order of ``columns``.

    Args:
        option: for messages.
        asked: each a list separated by commas; None: nothing was asked for.
        columns: of the input; empty if it has no rows, and then any name is accepted.

    Returns:
        Each column once; None if nothing was asked for.

    Raises:
        ConfigurationError: a name or glob means none of the columns.
    """
    if asked is None:
        return None
    chosen: dict[str, None] = {}
    for name in (name.strip() for given in asked for name in given.split(",")):
        if name:
            chosen.update(dict.fromkeys(_meant(option, name, columns)))
    return tuple(chosen)


def one_of(option: str, asked: str | None, columns: Sequence[str]) -> str | None:
    """The one column that a name or glob means; None if nothing was asked for.

    Raises:
        ConfigurationError: it means none of the columns, or several.
    """
    chosen = choose(option, None if asked is None else [asked], columns)
    if chosen is not None and len(chosen) != 1:
        raise ConfigurationError(f"{option} takes one column, not {asked!r}.")
    return chosen[0] if chosen else None


def csv_types(args: FileArgs, sources: Sequence[Source], head: InputSchema) -> dict[str, str]:
    """The types of the columns of CSV files: those that the user sets, and else those that their first rows have.

    Raises:
        ConfigurationError: an option names no column, no type, or a column twice; or no input is a CSV file.
    """
    if args.types and not any(source.format == "csv" for source in sources):
        raise ConfigurationError(
            "--types sets the types of CSV files; JSON lines and Parquet state theirs: convert the column there."
        )
    columns = tuple(head.csv) or head.columns
    text = choose("--text-columns", args.text_columns, columns) or ()
    asked = asked_types(args.types, columns)
    for column in text:
        if asked.setdefault(column, "str") != "str":
            raise ConfigurationError(
                f"column {column!r} is {asked[column]} in --types, and in --text-columns; choose one."
            )
    return {**head.csv, **asked}


def examples_of(args: Any, head: InputSchema, columns: tuple[str, ...] | None) -> Any:
    """How the handler's examples are made (``headrace.rows.examples.Examples``); what --decode makes is one.

    Args:
        args: the options, with ``key``.
        head: what the input is.
        columns: those that the model is given; None: all.
    """
    from headrace.rows.examples import Examples  # noqa: PLC0415 - as in headrace.cli.run

    is_example = args.decode is not None and columns == head.content
    key = one_of("--key", args.key or None, head.columns)
    return Examples(columns, head.columns, key, head.types, bare=is_example)


def contents_of(args: TypeArgs, head: InputSchema, columns: Sequence[str] | None) -> Any:
    """How the contents of files are read (``headrace.rows.files.Contents``); None if the model is given none.

    Args:
        args: the options.
        head: what the input is.
        columns: those that the model is given.

    Raises:
        ConfigurationError: there are no contents to decode, or the function cannot be imported.
    """
    from headrace.rows.files import Contents  # noqa: PLC0415 - as in headrace.cli.run

    if not set(head.content) & set(columns or ()):
        if args.decode is not None:
            cure = "add --columns content" if head.content else "add --format files"
            raise ConfigurationError(f"--decode makes the column content of a file's bytes; {cure}.")
        return None
    if args.decode is not None:
        return Contents(import_object(args.decode, "--decode"))
    return Contents(codecs.decode if getattr(args, "prompt", None) is not None else None)


def asked_types(asked: Iterable[str] | None, columns: Sequence[str]) -> dict[str, str]:
    """The types that the user sets.

    Args:
        asked: each a list of ``COLUMN=TYPE``, separated by commas; None: nothing was asked for.
        columns: as for ``choose``.

    Raises:
        ConfigurationError: it names no column, no type, or a column twice.
    """
    from headrace.jobs.csv_types import CELL_TYPES  # noqa: PLC0415 - as in headrace.cli.run

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


def _meant(option: str, name: str, columns: Sequence[str]) -> Sequence[str]:
    if name in columns or not columns:
        return [name]
    found = [column for column in columns if fnmatchcase(column, name)]
    if not found:
        meant = nearest(name, columns)
        question = f"; did you mean {meant!r}? The columns" if meant else "; the columns"
        raise ConfigurationError(
            f"{option}: there is no column {name!r}{question} are {listed(columns)}.{why_unexpected(columns)}"
        )
    return found


def listed(columns: Sequence[str], separator: str = ", ") -> str:
    """The names of columns, the first of many."""
    more = len(columns) - _MOST_LISTED
    return separator.join(columns[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def why_unexpected(columns: Sequence[str]) -> str:
    """A sentence about what may be wrong with a file whose columns are unexpected; empty if nothing looks wrong."""
    if len(columns) == 1:
        found = next((mark for mark in ";\t|" if mark in columns[0]), None)
        option = "$'\\t'" if found == "\t" else f"'{found}'"
        return (
            f" The file has one column only; if its fields are separated otherwise, add --delimiter {option}."
            if found
            else ""
        )
    if all(map(_is_number, columns)):
        return " These are numbers: the first line of a CSV file has to name its columns."
    return ""


def refuse_reserved(columns: Sequence[str]) -> None:
    """Raises ConfigurationError if a column of the input is where the prediction goes."""
    from headrace.rows.examples import RESERVED  # noqa: PLC0415 - as in headrace.cli.run

    for name in RESERVED:
        if name in columns:
            raise ConfigurationError(
                f"the input has a column {name!r}, where the prediction goes; name the columns to keep with --keep."
            )


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
