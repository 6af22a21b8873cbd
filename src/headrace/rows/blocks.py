"""Rows on their way: one by one, in blocks, and what stands in for one that cannot be read; and what columns hold.

This module also runs in model hosts: it must not import Beam, and imports pyarrow only where there is a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import chain, repeat
from typing import Any, NamedTuple

from headrace.batching.columnar import rows_in, slice_rows
from headrace.core.conversion import row_length

NUMBER_BITS = 40
_ROWS_AT_ONCE = 1024
"""How many rows of a block are Python objects before the handler takes them."""
_NAMES = {int: "int", float: "float", bool: "bool", str: "str", date: "date", datetime: "datetime"}

Row = dict[str, Any]


class BrokenLine(NamedTuple):
    """Stands in for a row whose line cannot be read."""

    line: str
    file: str
    number: int
    """Line number, counted from 1."""
    error: Exception
    attempts: int = 0
    """Attempts in earlier runs."""
    read_as: dict[str, Any] | None = None
    """How its line is read: format, delimiter, and types of the columns by name; None if it is no line of text."""
    position: dict[str, Any] | None = None
    """That of its dead letter of an earlier run."""

    @property
    def row(self) -> Row:
        """The line in the form of a row."""
        return {"line": self.line, "file": self.file, "line_number": self.number}


class TriedRow(dict[str, Any]):
    """A row from a dead letter of an earlier run."""

    def __init__(self, row: Row, attempts: int, position: dict[str, Any] | None = None) -> None:
        super().__init__(row)
        self.attempts = attempts
        """Attempts in earlier runs."""
        self.position = position
        """That of its dead letter; None if it has none."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles through the constructor: dicts are otherwise filled item by item into an empty instance."""
        return TriedRow, (dict(self), self.attempts, self.position)


class TypedRow(dict[str, Any]):
    """The columns of a row for a handler that keeps their types."""

    def __init__(self, row: Row, types: Mapping[str, str]) -> None:
        super().__init__(row)
        self.types = types
        """What the source states of the columns: int, float, bool, str, date, datetime, or another of its types."""


Record = Row | BrokenLine


def place_at(source: int, number: int) -> int:
    """A row's place as one integer, of its source and its number in it, from 0; places sort in input order."""
    return source << NUMBER_BITS | number


@dataclass(frozen=True, eq=False)
class Block:
    """Neighbouring rows of a source: an Arrow record batch, a slice of a data frame that came as one, or records.

    Implements what ``headrace.batching.columnar`` needs of an element: length and slices.
    """

    source: int
    """Index of the job's source."""
    first: int
    """Number of the first row in its source, counted from 0; unreadable lines count."""
    names: tuple[str, ...] = ()
    """The columns that the model sees, in its order, if it sees columns."""
    batch: Any = None
    """An Arrow record batch, or a data frame, of all columns."""
    records: Sequence[Record] = ()
    """The rows, if there is no batch: where Arrow's values would not be exact."""
    typed: Any = None
    """The record batch that a single record comes from, if it does."""
    example: Any = None
    """The example made from a single record."""
    path: str = ""
    """Of the source."""

    @property
    def place(self) -> int:
        """The place of the first row in the input."""
        return place_at(self.source, self.first)

    def __len__(self) -> int:
        return len(self.records) if self.batch is None else rows_in(self.batch)

    def __getitem__(self, place: Any) -> Any:
        """A slice gives a part of the block; a number gives that row."""
        if not isinstance(place, slice):
            return self[place : place + 1].rows()[0] if self.batch is not None else self.records[place]
        start, stop, _ = place.indices(len(self))
        if stop - start == len(self):
            return self
        if self.batch is None:
            return replace(self, first=self.first + start, records=self.records[start:stop])
        return replace(self, first=self.first + start, batch=slice_rows(self.batch, start, stop))

    def rows(self) -> Sequence[Record]:
        """The rows as Python values; one that has a value without Python equivalent is a ``BrokenLine``."""
        if self.batch is None:
            return self.records
        from headrace.rows.values import as_rows  # noqa: PLC0415 - needs pyarrow

        try:
            return as_rows(self.batch)
        except Exception as error:  # at least one value has no Python equivalent
            if len(self) > 1:
                return [self[place] for place in range(len(self))]
            columns = zip(self.batch.schema.names, self.batch.columns, strict=True)
            text = "\n".join(f"{name}: {' '.join(column.to_string().split())}" for name, column in columns)
            return [BrokenLine(text, self.path, self.first + 1, error)]

    def each(self) -> Iterator[tuple[Record, BlockRow]]:
        """The rows one by one, converted to Python values in small pieces, each with its place.

        The rows are the handler's to change: the block keeps them as they were read.
        """
        places = self.places()
        for start in range(0, len(self), _ROWS_AT_ONCE):
            rows = self[start : start + _ROWS_AT_ONCE].rows()
            if self.batch is None:
                rows = [dict(row) if isinstance(row, dict) else row for row in rows]
            yield from zip(rows, places)  # noqa: B905 - the places go on after these rows

    def places(self) -> Iterator[BlockRow]:
        """The places of the rows."""
        return map(BlockRow, repeat(self), range(self.place, self.place + len(self)))

    @property
    def nbytes(self) -> int:
        """Bytes of the columns; a nominal 64 for each record, and 8 for each value of a data frame."""
        if self.batch is None:
            return 64 * len(self.records)
        return int(self.batch.nbytes) if hasattr(self.batch, "nbytes") else 8 * int(self.batch.size)

    @property
    def kind(self) -> Any:
        """Blocks of the same kind can form one matrix or frame: equal column types; those of one data frame do."""
        if self.batch is None or hasattr(self.batch, "iloc"):
            return type(self.batch)
        columns = (self.batch.column(self.batch.schema.get_field_index(name)) for name in self.names)
        return tuple((column.type, _width_of(column)) for column in columns)


def _width_of(column: Any) -> int:
    """How many numbers each list of a column has, if it has lists of one length."""
    values: Any = getattr(column[0], "values", None) if len(column) else None
    return len(values) if hasattr(values, "null_count") else 0


class BlockRow(NamedTuple):
    """A row of a block, as its place; it keeps the block's memory."""

    block: Block
    place: int
    """An integer from ``place_at``, which tells the row from all other rows of the input."""
    length: float = 1
    """What its column of lengths says, if there is one."""

    @property
    def row(self) -> Record:
        """The row as it was read."""
        return self.block[self.place - self.block.place]  # type: ignore[no-any-return]

    @property
    def where(self) -> tuple[str, int]:
        """The file, and the row's number in it, counted from 1; of a dead letter those of its row."""
        block = self.block
        position = getattr(self.row, "position", None) if block.batch is None else None
        if position is not None:
            return position["file"], position["row"]
        return block.path, self.place - block.place + block.first + 1


def with_lengths(rows: Iterable[tuple[Record, BlockRow]], column: str) -> Iterator[tuple[Record, BlockRow]]:
    """Rows whose places say how long they are, by a column of theirs."""
    for row, place in rows:
        value = None if isinstance(row, BrokenLine) else row.get(column)
        yield row, place._replace(length=row_length(value))


def types_of_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The types of columns by their values, in rows that have been read; ``mixed``: of several types."""
    rows = list(rows)
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: _type_of({type(row.get(name)) for row in rows}) for name in names}


def _type_of(kinds: set[type]) -> str:
    kinds = kinds - {type(None)}
    if kinds == {int, float}:
        return "float"
    names = [_NAMES.get(kind, kind.__name__) for kind in kinds]
    return names[0] if len(names) == 1 else "mixed" if names else "null"


def types_of_schema(schema: Any) -> dict[str, str]:
    """The types of the columns of an Arrow schema; numbers of all widths are ``int`` or ``float``."""
    return {field.name: name_of_type(field.type) for field in schema}


def name_of_type(kind: Any) -> str:
    """What values of an Arrow type are: ``int``, ``float``, ``bool``, ``str``, ``date``, ``datetime``, or the type."""
    from pyarrow import types  # noqa: PLC0415 - only where there are Arrow's types

    if types.is_dictionary(kind):
        return name_of_type(kind.value_type)
    named = {
        "int": types.is_integer,
        "float": types.is_floating,
        "bool": types.is_boolean,
        "str": lambda one: str(one).endswith(("string", "string_view")),
        "date": types.is_date,
        "datetime": types.is_timestamp,
    }
    return next((name for name, is_kind in named.items() if is_kind(kind)), str(kind))
