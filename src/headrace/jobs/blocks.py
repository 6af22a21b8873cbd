"""Rows on their way through a job: blocks from the readers, and single rows of them for handlers that want rows.

This module also runs in model hosts: it must not import Beam, and imports pyarrow only where there is a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.jobs.records import Record

NUMBER_BITS = 40
_ROWS_AT_ONCE = 1024
"""How many rows of a block are Python objects before the handler takes them."""


def place_at(source: int, number: int) -> int:
    """A row's place as one integer; places sort in input order.

    Args:
        source: index of the job's source.
        number: of the row within the source, counted from 0; unreadable lines count.
    """
    return source << NUMBER_BITS | number


class BlockRow:
    """A row of a block, with its place. Pickled, it leaves its block behind."""

    __slots__ = ("block", "place", "row")

    def __init__(self, row: Record, place: int, block: Block | None = None) -> None:
        self.row = row
        self.place = place
        """An integer from ``place_at``, which tells the row from all other rows of the input."""
        self.block = block
        """The block whose record batch holds the row; None if it is a record."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the block: each of its rows would take all others along."""
        return BlockRow, (self.row, self.place)


@dataclass(frozen=True)
class Block:
    """Neighbouring rows of a source: an Arrow record batch, or records where Arrow's values would not be exact.

    Implements what ``headrace.batching.columnar`` needs of an element: length, slices, and ``concatenated``.
    """

    source: int
    """Index of the job's source."""
    first: int
    """Number of the first row in its source, counted from 0; unreadable lines count."""
    names: tuple[str, ...] = ()
    """The columns that the model sees, in its order, if it sees columns: finite numbers and no nulls."""
    batch: Any = None
    """An Arrow record batch of all columns."""
    records: Sequence[Record] = ()
    """The rows, if there is no batch."""
    example: Any = None
    """The example made from a single record."""
    path: str = ""
    """Of the source."""

    @property
    def place(self) -> int:
        """The place of the first row in the input."""
        return place_at(self.source, self.first)

    def __len__(self) -> int:
        return len(self.records) if self.batch is None else int(self.batch.num_rows)

    def __getitem__(self, place: Any) -> Any:
        """A slice gives a part of the block; a number gives that row."""
        if not isinstance(place, slice):
            return self[place : place + 1].rows()[0]
        start, stop, _ = place.indices(len(self))
        if stop - start == len(self):
            return self
        if self.batch is None:
            return replace(self, first=self.first + start, records=self.records[start:stop])
        return replace(self, first=self.first + start, batch=self.batch.slice(start, stop - start))

    def rows(self) -> Sequence[Record]:
        """The rows as Python values; one that has a value without Python equivalent is a ``BrokenLine``."""
        if self.batch is None:
            return self.records
        from headrace.jobs.values import rows_of  # noqa: PLC0415 - needs pyarrow

        return rows_of(self.batch, self.path, self.first)

    def each(self) -> Iterator[BlockRow]:
        """The rows one by one, converted to Python values in small pieces."""
        block = None if self.batch is None else self
        for start in range(0, len(self), _ROWS_AT_ONCE):
            part = self[start : start + _ROWS_AT_ONCE]
            for place, row in enumerate(part.rows(), part.place):
                yield BlockRow(row, place, block)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns; a nominal 64 for each record."""
        return 64 * len(self.records) if self.batch is None else int(self.batch.nbytes)

    @staticmethod
    def concatenated(blocks: Sequence[Block]) -> list[Block]:
        """Several blocks for one call of the model; the rows are not copied."""
        return list(blocks)

    @property
    def kind(self) -> Any:
        """Blocks of the same kind can form one matrix: equal column types."""
        return None if self.batch is None else tuple(self.batch.schema.field(name).type for name in self.names)
