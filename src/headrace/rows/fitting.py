"""Cuts blocks to what a model takes in columns; rows that do not fit become blocks of one record, in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pyarrow

from headrace.core.conversion import FLOAT32_MAX
from headrace.rows.blocks import Block
from headrace.rows.values import as_values


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


def has_numbers(schema: Any, names: Sequence[str]) -> bool:
    """Whether all columns exist and hold numbers."""
    return set(names) <= set(schema.names) and all(_is_number(schema.field(name).type) for name in names)


def _is_number(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _unfit(block: Block, all_finite: bool) -> Any:
    """A boolean array of the rows that do not fit into the model's matrix; None: all do."""
    batch = block.batch
    if not has_numbers(batch.schema, block.names):
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
