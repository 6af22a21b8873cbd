"""Converts Arrow's and pandas' values to Python values without losing a digit, whatever other packages are installed.

For nanosecond types pyarrow returns pandas values, truncates, or raises. Here they become ``datetime`` types if they
are whole microseconds, and else ISO 8601 text with nine fraction digits.
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any

import pyarrow
import pyarrow.compute

from headrace.rows.durations import duration_text
from headrace.rows.records import BrokenLine, Record, Row

_TYPES = pyarrow.types
_DAY = 86_400_000_000
"""In microseconds."""


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
    if _is_plain(kind):
        values: list[Any] = column.to_pylist()
        return values
    if isinstance(kind, pyarrow.BaseExtensionType):
        return as_values(column.storage)
    if _TYPES.is_dictionary(kind):
        return as_values(column.dictionary_decode())
    if _TYPES.is_struct(kind):
        return _of_structs(column)
    if _TYPES.is_map(kind):
        lists = as_values(column.cast(pyarrow.list_(pyarrow.struct([kind.key_field, kind.item_field]))))
        return [pairs and [tuple(pair.values()) for pair in pairs] for pairs in lists]
    return _of_lists(column) if kind.num_fields else _of_times(column)


def _is_plain(kind: Any) -> bool:
    """Whether pyarrow's own conversion of the type is exact."""
    while isinstance(kind, pyarrow.BaseExtensionType):  # which may not be hashable
        kind = kind.storage_type
    return _is_plain_storage(kind)


@lru_cache(1000)
def _is_plain_storage(kind: Any) -> bool:
    if _TYPES.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if kind.num_fields:
        return all(_is_plain(kind.field(place).type) for place in range(kind.num_fields))
    return not _TYPES.is_time(kind) and getattr(kind, "unit", None) != "ns"


def _of_structs(column: Any) -> list[Any]:
    names = [field.name for field in column.type]
    rows = zip(*map(as_values, column.flatten()), strict=True)
    valid = column.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _of_lists(column: Any) -> list[Any]:
    values = iter(as_values(column.flatten()))
    lengths = pyarrow.compute.list_value_length(column).to_pylist()
    return [None if length is None else list(islice(values, length)) for length in lengths]


def _of_times(column: Any) -> list[Any]:
    """Timestamps, durations, and times of day; pyarrow would accept times of day beyond 24 hours."""
    kind = _in_microseconds(column.type)
    rests: list[int] = [0] * len(column)
    try:
        whole = column.cast(kind)
    except pyarrow.ArrowInvalid:  # not whole microseconds
        counts = column.cast(pyarrow.int64()).to_pylist()
        whole = pyarrow.array([None if count is None else count // 1000 for count in counts], pyarrow.int64())
        whole = whole.cast(kind)
        rests = [0 if count is None else count % 1000 for count in counts]
    if _TYPES.is_time(kind):
        _refuse_more_than_a_day(whole)
    return [_text(value, rest) if rest else value for value, rest in zip(whole.to_pylist(), rests, strict=True)]


def _in_microseconds(kind: Any) -> Any:
    if _TYPES.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.time64("us") if _TYPES.is_time(kind) else pyarrow.duration("us")


def _refuse_more_than_a_day(times: Any) -> None:
    ends = pyarrow.compute.min_max(times.cast(pyarrow.int64()))
    if (ends["min"].as_py() or 0) < 0 or (ends["max"].as_py() or 0) >= _DAY:
        raise OverflowError("a time of day is not between 00:00 and 24:00")


def _text(value: datetime | time | timedelta, nanoseconds: int) -> str:
    """ISO 8601 text of a value plus fewer than 1,000 nanoseconds."""
    if isinstance(value, timedelta):
        return duration_text(value, nanoseconds)
    head, _, tail = value.isoformat(timespec="microseconds").partition(".")
    return f"{head}.{tail[:6]}{nanoseconds:03}{tail[6:]}"
