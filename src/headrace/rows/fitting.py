"""Cuts blocks to what a model takes in columns; rows that do not fit become blocks of one record, in place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from headrace.core.conversion import FLOAT32_MAX
from headrace.rows.blocks import Block
from headrace.rows.values import as_values


class Fit(NamedTuple):
    """What a model takes of blocks."""

    names: tuple[str, ...]
    """The columns that it sees, in its order."""
    frames: bool
    """Whether it takes columns of all types, as a frame; else finite numbers without nulls, as a matrix."""
    reserved: Collection[str] = ()
    """Columns that no row may have."""
    missing: bool = False
    """Whether a model of numbers takes NaN for those that are missing."""


def fitted(blocks: Iterable[Block], fit: Fit, *, all_finite: bool = False) -> Iterator[Block]:
    """Blocks of rows that fit, and blocks of one record.

    Args:
        blocks: any.
        fit: what the model takes.
        all_finite: whether columns that a model of numbers does not see must be finite, too: in CSV, such a field may
            have been text.
    """
    for block in blocks:
        if fit.frames:
            unfit = _unfit_for_frame(block, fit.reserved)
        else:
            unfit = numpy.ones(len(block), bool) if block.batch is None else _unfit(block, fit, all_finite)
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
    """Whether all columns exist and hold numbers, or lists of numbers."""
    kinds = (schema.field(name).type for name in names)
    return set(names) <= set(schema.names) and all(_is_number(kind) or is_vector(kind) for kind in kinds)


def _is_number(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_vector(kind: Any) -> bool:
    """Whether a column of Arrow's holds lists of numbers."""
    types = pyarrow.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and _is_number(kind.value_type)


def width_of(column: Any) -> int:
    """How many numbers each list of a column of vectors has; the first one decides. 0: there are no rows."""
    if pyarrow.types.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    return 0 if not len(column) else pyarrow.compute.list_value_length(column)[0].as_py() or 0


def _unfit_for_frame(block: Block, reserved: Collection[str]) -> Any:
    """A boolean array of the rows that cannot be read, or lack a column; None: there are none."""
    needed = set(block.names)
    if hasattr(block.batch, "iloc"):
        return None
    if block.batch is None:
        fits = (
            isinstance(row, dict) and needed <= row.keys() and row.keys().isdisjoint(reserved) for row in block.records
        )
        wrong = [not fit for fit in fits]
    elif needed <= set(block.batch.schema.names):
        wrong = _unreadable(block.batch) or []
    else:
        return numpy.ones(len(block), bool)
    return numpy.array(wrong) if any(wrong) else None


def _unfit(block: Block, fit: Fit, all_finite: bool) -> Any:
    """A boolean array of the rows that do not fit into the model's matrix; None: all do."""
    batch = block.batch
    if not has_numbers(batch.schema, block.names):
        return numpy.ones(len(block), bool)
    wrong = None if all_finite else _unreadable(batch)
    unfit: Any = None if wrong is None else numpy.array(wrong)
    for name in batch.schema.names if all_finite else block.names:
        column = batch.column(batch.schema.get_field_index(name))
        is_seen = name in block.names
        if is_vector(column.type):
            bad = _wrong_vectors(column, nulls=is_seen)
        else:
            bad = _wrong(column, nulls=is_seen and not fit.missing, nan=not (is_seen and fit.missing))
        if bad is not None:
            unfit = bad if unfit is None else unfit | bad
    return unfit


def _unreadable(batch: Any) -> list[bool] | None:
    """Which rows of a record batch contain a value that Python cannot represent; None: no row."""
    wrong: list[bool] | None = None
    for column in batch.columns:
        if not (_is_number(column.type) or is_vector(column.type) or _is_readable(column)):
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


def _wrong_vectors(column: Any, *, nulls: bool) -> Any:
    """Marks vectors that differ in length from most, or hold a wrong number; None: there are none."""
    if not nulls:
        return None
    lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    width = numpy.bincount(lengths[lengths >= 0]).argmax() if (lengths >= 0).any() else 0
    unfit = lengths != width
    numbers = column.filter(pyarrow.array(~unfit)) if unfit.any() else column
    bad = _wrong(numbers.flatten(), nulls=True)
    if bad is not None:
        unfit[numpy.flatnonzero(~unfit)[bad.reshape(-1, width).any(axis=1)]] = True
    return unfit if unfit.any() or not width else None


def _wrong(column: Any, *, nulls: bool, nan: bool = True) -> Any:
    """Marks nulls (if ``nulls``), NaN (if ``nan``) and numbers that not every handler accepts; None: there are none."""
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
    if not nan:
        wrong &= ~numpy.isnan(values)
    return wrong if missing is None else wrong | missing
