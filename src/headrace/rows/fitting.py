"""Cuts blocks to what a model takes in columns; rows that do not fit become blocks of one record, in place."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from headrace.core.columns import Form, Takes
from headrace.core.conversion import FLOAT32_MAX
from headrace.rows.blocks import Block
from headrace.rows.records import BrokenLine, Record
from headrace.rows.types import types_of_schema
from headrace.rows.values import as_values, rows_of

_LIMITS = -FLOAT32_MAX, FLOAT32_MAX
_NUMBERS = {"int", "float", "bool", "list"}
_LISTS = "list<", "large_list<", "fixed_size_list<"
"""How the names of Arrow's types of lists begin."""
_PAIR = numpy.array([0.0, math.nan])
ZERO, NAN = pyarrow.Array.from_buffers(pyarrow.float64(), 2, [None, pyarrow.py_buffer(_PAIR)])
"""Scalars of Arrow's, which would import pandas for Python's numbers."""


class Fit(NamedTuple):
    """What a model takes of blocks."""

    names: tuple[str, ...]
    """The columns that it sees, in its order."""
    takes: Takes = Takes()
    """In which form; but in a frame, columns are without nulls."""
    reserved: Collection[str] = ()
    """Columns that no row may have."""

    def has_types(self, types: Mapping[str, str]) -> bool:
        """Whether columns of these types, named as in ``headrace.rows.types``, may be all that the model sees."""
        form, kinds = self.takes.form, {types.get(name, "") for name in self.names}
        if form is Form.TEXTS:
            return len(self.names) == 1 and kinds == {"str"}
        known = _NUMBERS | {"str"} if form is Form.ARRAYS and self.takes.limits is None else _NUMBERS
        return form is Form.FRAME or all(kind in known or kind.startswith(_LISTS) for kind in kinds)

    def limits_of(self, name: str) -> tuple[float, float]:
        """The least and the largest number of a column; integers if it takes whole numbers only."""
        return _LIMITS if self.takes.limits is None else self.takes.limits(name)


def fitted(blocks: Iterable[Block], fit: Fit) -> Iterator[Block]:
    """Blocks of rows that fit, and blocks of one record."""
    for block in blocks:
        unfit = _unfit(block, fit)
        if unfit is None or not unfit.any():
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


def plain(column: Any) -> Any:
    """A column without a dictionary; numbers have 64 bits, times are in microseconds, rounded as Python does."""
    column = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
    kind = _plain_type(column.type)
    if kind == column.type:
        return column
    try:
        return column.cast(kind, safe=False)
    except pyarrow.ArrowNotImplementedError:  # text of Polars, with pyarrow 16
        return pyarrow.array(column.to_pylist(), kind)


def numbers_of(column: Any) -> Any:
    """Numbers without nulls as an array of numpy's. Arrow's ``to_numpy`` would import pandas if it is installed."""
    if pyarrow.types.is_boolean(column.type):
        return numpy.from_dlpack(column.cast(pyarrow.uint8())).view(numpy.bool_)
    return numpy.from_dlpack(column)


def _plain_type(kind: Any) -> Any:
    types = pyarrow.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_floating(kind):
        return pyarrow.float64()
    if types.is_integer(kind):
        return kind if kind == pyarrow.uint64() else pyarrow.int64()
    if types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.large_string() if str(kind) == "string_view" else kind  # of Polars


def _is_number(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_text(kind: Any) -> bool:
    """Whether a column of Arrow's holds texts."""
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


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


def _unfit(block: Block, fit: Fit) -> Any:
    """A boolean array of the rows that do not fit, or cannot be read; None: all do."""
    batch, needed, is_frame = block.batch, set(block.names), fit.takes.form is Form.FRAME
    if hasattr(batch, "iloc"):
        return None
    if batch is None:
        return numpy.array([not (is_frame and _is_whole(row, needed, fit.reserved)) for row in block.records])
    if not needed <= set(batch.schema.names) or not fit.has_types(types_of_schema(batch.schema)):
        return numpy.ones(len(block), bool)
    unfit = _unreadable(batch)
    for name in () if is_frame else block.names:
        column = plain(batch.column(batch.schema.get_field_index(name)))
        if is_vector(column.type):
            bad = _wrong_vectors(column, fit.limits_of(name))
        elif column.type.num_fields:  # lists of others
            return numpy.ones(len(block), bool)
        else:
            bad = _wrong(column, fit.limits_of(name), nulls=not fit.takes.missing, nan=not fit.takes.missing)
        if bad is not None:
            unfit = bad if unfit is None else unfit | bad
    return unfit


def _is_whole(row: Record, needed: AbstractSet[str], reserved: Collection[str]) -> bool:
    """Whether a row can be read and has the columns that it must have, and none that it must not."""
    return isinstance(row, dict) and needed <= row.keys() and row.keys().isdisjoint(reserved)


def _unreadable(batch: Any) -> Any:
    """Which rows of a record batch contain a value that Python cannot represent; None: no row."""
    doubtful = [place for place, column in enumerate(batch.columns) if not _is_readable(column)]
    if not doubtful:
        return None
    return numpy.array([isinstance(row, BrokenLine) for row in rows_of(batch.select(doubtful), "", 0)])


def _is_readable(column: Any) -> bool:
    if _is_number(column.type) or is_vector(column.type):
        return True
    try:
        if pyarrow.types.is_dictionary(column.type):
            return _is_readable(column.dictionary)
        if is_text(column.type):
            column.validate(full=True)  # only checks UTF-8: much faster
        else:
            as_values(column)
    except Exception:  # whatever the value's type raises
        return False
    return True


def _wrong_vectors(column: Any, limits: tuple[float, float]) -> Any:
    """Marks vectors that differ in length from most, or hold a wrong number; None: there are none."""
    lengths = numbers_of(pyarrow.compute.fill_null(pyarrow.compute.list_value_length(column), -1))
    width = numpy.bincount(lengths[lengths >= 0]).argmax() if (lengths >= 0).any() else 0
    unfit = lengths != width
    numbers = column.filter(pyarrow.array(~unfit)) if unfit.any() else column
    bad = _wrong(plain(numbers.flatten()), limits, nulls=True)
    if bad is not None:
        unfit[numpy.flatnonzero(~unfit)[bad.reshape(-1, width).any(axis=1)]] = True
    return unfit if unfit.any() or not width else None


def _wrong(column: Any, limits: tuple[float, float], *, nulls: bool, nan: bool = True) -> Any:
    """Marks nulls (if ``nulls``), NaN (if ``nan``) and numbers beyond the limits; None: there are none."""
    missing = numbers_of(column.is_null()) if nulls and column.null_count else None
    kind, (least, most), whole = column.type, limits, isinstance(limits[1], int)
    if pyarrow.types.is_floating(kind):
        most = math.nextafter(most + 1, 0) if whole else most
    elif kind == pyarrow.uint64() or (limits != _LIMITS and pyarrow.types.is_integer(kind)):
        least, most = max(least, -(2**63)), min(most, 2**63 - 1)
    else:
        return missing
    values = numbers_of(column.fill_null(ZERO.cast(kind)) if column.null_count else column)
    broken = numpy.trunc(values) != values if whole and values.dtype.kind == "f" else numpy.False_
    if not len(values) or (values.max() <= most and values.min() >= least and not broken.any()):  # false if NaN
        return missing
    wrong = ~(values <= most) | ~(values >= least) | broken
    if not nan:
        wrong &= ~numpy.isnan(values)
    return wrong if missing is None else wrong | missing
