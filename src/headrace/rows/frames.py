"""The rows of a data frame or an Arrow table, with the values that they would have in a file of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from headrace.batching.columnar import rows_in, slice_rows
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import nearest
from headrace.rows.blocks import Block
from headrace.rows.examples import Examples
from headrace.rows.records import Record
from headrace.rows.types import types_of_schema

_ROWS_AT_ONCE = 1024
_ROWS_OF_BLOCK = 1 << 15
_WHERE = "the table"


def names_of(table: Any) -> tuple[str, ...]:
    """The names of a table's columns.

    Raises:
        ConfigurationError: it has none, or two of the same name; or it is a table of no known kind.
    """
    names = tuple(_arrow(table).schema.names if _is_arrow(table) else table.columns)
    if not names:
        raise ConfigurationError("the table has no columns, so its rows make no examples.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigurationError(f"the table has several columns {twice[0]!r}; rename all but one.")
    return names


def types_of_table(table: Any) -> dict[str, Any]:
    """The types of the columns of an Arrow table, or the dtypes of a data frame; for objects that of the first ones."""
    if _is_arrow(table):
        return types_of_schema(_arrow(table).schema)
    given = table.dtypes.items()
    first = table.iloc[:_ROWS_AT_ONCE]
    return {name: first[name].convert_dtypes().dtype if str(kind) == "object" else kind for name, kind in given}


def examples_of(table: Any, columns: Any, key: str | None) -> Examples:
    """How the examples of a table's rows are made, of the arguments ``columns`` and ``key``.

    Raises:
        ConfigurationError: there is no such column.
    """
    names = names_of(table)
    keys = chosen("key", key, names)
    return Examples(chosen("columns", columns, names), names, keys[0] if keys else None, types_of_table(table))


def rows_of_table(table: Any) -> Iterator[Record]:
    """The rows in order, each a dict; one that has a value without Python equivalent is a ``BrokenLine``."""
    return chain.from_iterable(block.rows() for block in blocks_of_table(table, (), _ROWS_AT_ONCE))


def blocks_of_table(table: Any, names: Sequence[str], rows: int = _ROWS_OF_BLOCK) -> Iterator[Block]:
    """The rows of a table in blocks.

    Args:
        table: of Arrow's or of pandas'.
        names: of the columns that the model sees.
        rows: the most of a block.
    """
    table = _arrow(table) if _is_arrow(table) else table
    for start in range(0, rows_in(table), rows):
        for some in _batches_of(slice_rows(table, start, start + rows)):
            yield Block(0, start, tuple(names), some, path=_WHERE)
            start += rows_in(some)  # noqa: PLW2901 - of the next batch


def _batches_of(some: Any) -> Sequence[Any]:
    """Neighbouring rows as record batches: several if the text of one column is too long for one array."""
    return some.combine_chunks().to_batches() if hasattr(some, "to_batches") else [some]


def frames_of(frame: Any, examples: Examples) -> Iterator[Any]:
    """The rows of a data frame in order, each a frame of the chosen columns, with the types that these have.

    For a keyed handler they are pairs with the row's key.
    """
    seen = frame if examples.columns is None else frame[list(examples.columns)]
    rows = (seen.iloc[place : place + 1] for place in range(len(seen)))
    return rows if examples.key is None else zip(frame[examples.key], rows, strict=True)


def chosen(option: str, asked: str | Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that an argument names; None if it was left out.

    Args:
        option: of the argument, for messages.
        asked: a name, or several.
        names: of the table's columns.

    Raises:
        ConfigurationError: it names a column that there is not, or none at all.
    """
    if asked is None:
        return None
    wanted: tuple[Any, ...] = (asked,) if isinstance(asked, str) or asked in names else tuple(asked)
    for name in wanted:
        if name not in names:
            meant = nearest(str(name), map(str, names))
            hint = f"did you mean {meant!r}?" if meant else f"it has {', '.join(map(str, names))}."
            raise ConfigurationError(f"{option}: the table has no column {name!r}; {hint}")
    if not wanted:
        raise ConfigurationError(f"{option} names no column; leave it out if the handler is to be given all of them.")
    return wanted


def _is_arrow(table: Any) -> bool:
    """Whether it is a table or record batch of Arrow's, or can be made one, as a frame of polars can."""
    return not hasattr(table, "iloc")


def _arrow(table: Any) -> Any:
    if hasattr(table, "num_columns"):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        kind = f"{type(table).__module__}.{type(table).__qualname__}"
        raise ConfigurationError(
            f"predict takes data frames of pandas and tables of Arrow, and no {kind}: give it an iterable of rows."
        )
    import pyarrow  # noqa: PLC0415 - only such a table needs it

    return pyarrow.table(table)
