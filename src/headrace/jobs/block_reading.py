"""Reads files into blocks of rows; rows that do not fit into columns become blocks of one row, in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy
import pyarrow

from headrace.core.conversion import FLOAT32_MAX
from headrace.jobs.block_csv import ColumnRows, SingleRow, parse
from headrace.jobs.blocks import Block
from headrace.jobs.files import Source, open_source
from headrace.jobs.parquet_rows import parquet_file, rows_of, unreadable
from headrace.jobs.pipes import is_pipe
from headrace.jobs.row_ranges import RowRanges

_ROWS = 1 << 14
_BYTES = 1 << 24
_PACE_SECONDS = 1.0
_DELIMITERS = ",;\t|:"


def has_blocks(sources: Sequence[Source], numbers: Mapping[str, type], names: Sequence[str]) -> bool:
    """Whether files can be read in blocks with ``names`` as number columns; judges by one file of each format."""
    formats = {source.format: source for source in reversed(sources)}
    if not names or not sources or any(source.letters for source in sources) or formats.keys() - {"csv", "parquet"}:
        return False
    if any(source.format == "csv" and source.delimiter not in _DELIMITERS for source in sources):
        return False
    if any(is_pipe(source.path) for source in sources):  # a pipe's rows must not wait for others
        return False
    fits_csv = "csv" not in formats or all(name in numbers for name in names)
    return fits_csv and ("parquet" not in formats or _has_numbers(_schema_of(formats["parquet"]), names))


def read_blocks(
    source: Source, index: int, numbers: Mapping[str, type], names: Sequence[str], done: RowRanges
) -> Iterator[Block]:
    """The blocks of a file, in order; holds a few megabytes in memory, or a row group of a Parquet file.

    Args:
        source: the file.
        index: of the source, counted from 0.
        numbers: the types of a CSV file's number columns.
        names: the columns that the model sees.
        done: places of rows to leave out.
    """
    first = 0
    for rows in _parquet(source, index, done) if source.format == "parquet" else parse(source, numbers):
        if isinstance(rows, int):
            first += rows
            continue
        if isinstance(rows, SingleRow):
            block, all_finite = Block(index, first, tuple(names), row=rows.row), True
        else:
            block, all_finite = Block(index, first, tuple(names), rows.batch), rows.all_finite
        first += len(block)
        for start, stop in done.missing(index, block.first, first):
            yield from _cut(block[start - block.first : stop - block.first], source.path, all_finite)


def cut_by_time(blocks: Iterable[Block], clock: Callable[[], float] = time.monotonic) -> Iterator[Block]:
    """Cuts blocks to what about a second processes, so that killing the run loses few rows of a slow model.

    The first part is one row; each later part is at most twice as long as the one before it.
    """
    begin, size, taken = clock(), 1, 0
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + size]
            yield part
            start += len(part)
            taken += len(part)
            rows_in_a_second = taken / max(clock() - begin, 1e-3)
            size = max(1, min(2 * size, int(rows_in_a_second * _PACE_SECONDS)))


def _schema_of(source: Source) -> Any:
    with open_source(source) as file:
        return parquet_file(file).schema_arrow


def _has_numbers(schema: Any, names: Sequence[str]) -> bool:
    """Whether all columns exist and hold numbers."""
    return set(names) <= set(schema.names) and all(_is_number(schema.field(name).type) for name in names)


def _is_number(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _parquet(source: Source, index: int, done: RowRanges) -> Iterator[ColumnRows | int]:
    """Record batches; a number stands for that many rows of row groups that are already done."""
    with open_source(source) as file:
        parquet = parquet_file(file)
        sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        ends = list(accumulate(sizes))

        def is_done(group: int) -> bool:
            return not any(done.missing(index, ends[group] - sizes[group], ends[group]))

        size = _rows_at_once(parquet.metadata)
        for are_done, some in groupby(range(len(sizes)), is_done):
            groups = list(some)
            if are_done:
                yield sum(sizes[group] for group in groups)
                continue
            for batch in parquet.iter_batches(size, row_groups=groups, use_threads=False):
                yield ColumnRows(batch, all_finite=False)


def _rows_at_once(metadata: Any) -> int:
    """Rows per batch, limited by their average size."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups) / max(1, metadata.num_rows)
    return max(1, min(_ROWS, int(_BYTES / max(1.0, size))))


def _cut(block: Block, path: str, all_finite: bool) -> Iterator[Block]:
    """Cuts a block at rows that are unfit for the model's columns; such rows become blocks of one row."""
    unfit = None if block.batch is None else _unfit(block, all_finite)
    if unfit is None:
        yield block
        return
    start = 0
    for place in [*numpy.flatnonzero(unfit).tolist(), len(block)]:
        if place > start:
            yield block[start:place]
        if place < len(block):
            (row,) = rows_of(block.batch.slice(place, 1), path, block.first + place)
            yield Block(block.source, block.first + place, block.names, row=row)
        start = place + 1


def _unfit(block: Block, all_finite: bool) -> Any:
    """A boolean array of the rows that do not fit into the model's matrix; None: all do."""
    batch = block.batch
    if not _has_numbers(batch.schema, block.names):
        return numpy.ones(len(block), bool)
    wrong = None if all_finite else unreadable(batch)
    unfit: Any = None if wrong is None else numpy.array(wrong)
    for name in batch.schema.names if all_finite else block.names:
        column = batch.column(batch.schema.get_field_index(name))
        bad = _wrong(column, nulls=name in block.names)
        if bad is not None:
            unfit = bad if unfit is None else unfit | bad
    return unfit


def _wrong(column: Any, *, nulls: bool) -> Any:
    """Marks nulls (if ``nulls``) and numbers that not every handler accepts; None: there are none."""
    missing = column.is_null().to_numpy(zero_copy_only=False) if nulls and column.null_count else None
    kind = column.type
    if pyarrow.types.is_floating(kind):
        largest = FLOAT32_MAX
    elif kind == pyarrow.uint64():
        largest = 2**63 - 1
    else:
        return missing
    if pyarrow.types.is_float16(kind):
        column = column.cast(pyarrow.float32())
    values = column.fill_null(0) if column.null_count else column
    values = values.to_numpy(zero_copy_only=False)
    if not len(values) or (values.max() <= largest and values.min() >= -largest):  # false if there is a NaN
        return missing
    wrong = ~(values <= largest) | ~(values >= -largest)
    return wrong if missing is None else wrong | missing
