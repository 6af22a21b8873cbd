"""Converts Arrow's and pandas' values to Python values without losing a digit, whatever other packages are installed.

For nanosecond types pyarrow returns pandas values, truncates, or raises. Here they become ``datetime`` types if they
are whole microseconds, and else text with nine fraction digits, in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow

from headrace.rows.records import BrokenLine, Record, Row

_TYPES = pyarrow.types


def rows_of(batch: Any, path: str, first: int) -> list[Record]:
    """The rows of a record batch as Python values; one that has a value without Python equivalent is a ``BrokenLine``.

    Args:
        batch: neighbouring rows; of a data frame, too.
        path: of their file.
        first: the number of the first row in the file, counted from 0.
    """
    try:
        return [*as_rows(batch)]
    except Exception:  # at least one value has no Python equivalent
        return [_row_of(batch.slice(place, 1), path, first + place) for place in range(batch.num_rows)]


def _row_of(batch: Any, path: str, place: int) -> Record:
    try:
        row: Row = as_rows(batch)[0]
    except Exception as error:
        columns = zip(batch.schema.names, batch.columns, strict=True)
        text = "\n".join(f"{name}: {' '.join(column.to_string().split())}" for name, column in columns)
        return BrokenLine(text, path, place + 1, error)
    return row


def as_rows(batch: Any) -> list[Row]:
    """The rows of a record batch or a data frame."""
    if hasattr(batch, "iloc"):
        columns = [values_of_series(batch.iloc[:, place]) for place in range(batch.shape[1])]
        return [dict(zip(batch.columns, row, strict=True)) for row in zip(*columns, strict=True)]
    names = batch.schema.names
    if not names:
        rows: list[Row] = batch.to_pylist()
        return rows
    return [dict(zip(names, row, strict=True)) for row in zip(*map(as_values, batch.columns), strict=True)]


def values_of_series(series: Any) -> list[Any]:
    """The values of a column of a data frame; missing ones are None. Objects are the frame's own."""
    if series.dtype != object:
        with suppress(pyarrow.ArrowException, TypeError, OverflowError):  # intervals, complex numbers
            return as_values(_array_of_series(series))
    return [None if _is_missing(value) else value for value in series]


def batch_of_frame(frame: Any) -> Any:
    """A data frame as a record batch; None if Arrow cannot have it, or its columns are not named by texts."""
    with suppress(pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        arrays = [_array_of_series(frame.iloc[:, place]) for place in range(frame.shape[1])]
        return pyarrow.RecordBatch.from_arrays(arrays, names=list(frame.columns))
    return None


def _array_of_series(series: Any) -> Any:
    array = pyarrow.array(series, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array


def _is_missing(value: Any) -> bool:
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value))


def as_values(column: Any) -> list[Any]:
    """The values of an array.

    Raises:
        OverflowError: Python cannot represent one of them.
    """
    kind = column.type
    if _is_exact(kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind):  # not all are hashable
        values: list[Any] = column.to_pylist()
        return values
    column = pyarrow.concat_arrays([column, column.slice(0, 0)])  # a cast sees all values below a slice of lists
    try:
        values = column.cast(_with_times(kind, _in_microseconds)).to_pylist()
    except pyarrow.ArrowInvalid:  # not whole microseconds
        if len(column) > 1:
            return [as_values(column.slice(place, 1))[0] for place in range(len(column))]
        column = column.cast(_with_times(kind, _in_utc))
        values = column.cast(_with_times(kind, lambda _: pyarrow.string())).to_pylist()
    return values


@lru_cache(1000)
def _is_exact(kind: Any) -> bool:
    """Whether pyarrow's own conversion of the type is exact."""
    return bool(_with_times(kind, _in_microseconds) == kind)


def _with_times(kind: Any, changed: Callable[[Any], Any]) -> Any:
    """A type with other types of nanoseconds, also within it; without extensions and dictionaries of these."""
    is_extension = isinstance(kind, pyarrow.BaseExtensionType)
    if is_extension or _TYPES.is_dictionary(kind):
        inner = kind.storage_type if is_extension else kind.value_type
        return kind if _with_times(inner, _in_microseconds) == inner else _with_times(inner, changed)
    if _TYPES.is_struct(kind):
        return pyarrow.struct([field.with_type(_with_times(field.type, changed)) for field in kind])
    if _TYPES.is_map(kind):
        return pyarrow.map_(_with_times(kind.key_type, changed), _with_times(kind.item_type, changed))
    if _TYPES.is_large_list(kind):
        return pyarrow.large_list(_with_times(kind.value_type, changed))
    if _TYPES.is_list(kind) or _TYPES.is_fixed_size_list(kind):
        return pyarrow.list_(_with_times(kind.value_type, changed), getattr(kind, "list_size", -1))
    return changed(kind) if getattr(kind, "unit", None) == "ns" else kind


def _in_utc(kind: Any) -> Any:
    """Arrow's own text of a local time is wrong near the ends of its range, and in summers from 2038 on."""
    return pyarrow.timestamp("ns", "UTC") if getattr(kind, "tz", None) else kind


def _in_microseconds(kind: Any) -> Any:
    if _TYPES.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.time64("us") if _TYPES.is_time(kind) else pyarrow.duration("us")
