"""Cuts blocks to what a model takes in columns; rows that do not fit become blocks of one record, in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pyarrow

from headrace.core.conversion import FLOAT32_MAX
from headrace.jobs.blocks import Block
from headrace.jobs.csv_types import NUMERIC
from headrace.jobs.files import Source, open_source
from headrace.jobs.parquet_blocks import parquet_file
from headrace.jobs.pipes import is_pipe
from headrace.rows.values import as_values

_PACE_SECONDS = 1.0


def fits_columns(sources: Sequence[Source], types: Mapping[str, str], names: Sequence[str]) -> bool:
    """Whether ``names`` are number columns of the files; judges by one file of each format."""
    formats = {source.format: source for source in reversed(sources)}
    if not names or not sources or any(source.letters for source in sources) or formats.keys() - {"csv", "parquet"}:
        return False
    if any(is_pipe(source.path) for source in sources):  # a pipe's rows must not wait for others
        return False
    fits_csv = "csv" not in formats or all(types.get(name) in NUMERIC for name in names)
    return fits_csv and ("parquet" not in formats or _has_numbers(_schema_of(formats["parquet"]), names))


def fitted(blocks: Iterable[Block], *, all_finite: bool) -> Iterator[Block]:
    """Blocks whose record batches have only finite numbers in the model's columns, and blocks of one record.

    Args:
        blocks: any.
        all_finite: whether columns that the model does not see must be finite, too: in CSV, such a field may have been
            text.
    """
    for block in blocks:
        unfit = numpy.ones(len(block), bool) if block.batch is None else _unfit(block, all_finite)
        if unfit is None:
            yield block
            continue
        start = 0
        for place in [*numpy.flatnonzero(unfit).tolist(), len(block)]:
            if place > start:
                yield block[start:place]
            if place < len(block):
                one = block[place : place + 1]
                yield one if block.batch is None else replace(one, batch=None, records=one.rows())
            start = place + 1


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


def _unfit(block: Block, all_finite: bool) -> Any:
    """A boolean array of the rows that do not fit into the model's matrix; None: all do."""
    batch = block.batch
    if not _has_numbers(batch.schema, block.names):
        return numpy.ones(len(block), bool)
    wrong = None if all_finite else _unreadable(batch)
    unfit: Any = None if wrong is None else numpy.array(wrong)
    for name in batch.schema.names if all_finite else block.names:
        column = batch.column(batch.schema.get_field_index(name))
        bad = _wrong(column, nulls=name in block.names)
        if bad is not None:
            unfit = bad if unfit is None else unfit | bad
    return unfit


def _unreadable(batch: Any) -> list[bool] | None:
    """Which rows of a record batch contain a value that Python cannot represent; None: no row."""
    wrong: list[bool] | None = None
    for column in batch.columns:
        if not (_is_number(column.type) or _is_readable(column)):
            bad = [not _is_readable(column.slice(place, 1)) for place in range(len(column))]
            wrong = bad if wrong is None else [one or other for one, other in zip(wrong, bad, strict=True)]
    return wrong


def _is_readable(column: Any) -> bool:
    types = pyarrow.types
    try:
        if types.is_string(column.type) or types.is_large_string(column.type):
            column.validate(full=True)  # only checks UTF-8: much faster
        else:
            as_values(column)
    except Exception:  # whatever the value's type raises
        return False
    return True


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
