"""Converts between Arrow's, pandas', numpy's and Python's values without losing a digit.

For nanoseconds pyarrow returns pandas' values, truncates, or raises. Here they become ``datetime`` types if they are
whole microseconds, and else text with nine fraction digits, in UTC. ``pyarrow.array`` and ``to_numpy`` import pandas if
it is installed, which takes a second; what is here does not.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

_TYPES = pyarrow.types
_DTYPES = {pyarrow.bool_(): numpy.bool_, pyarrow.int64(): numpy.int64, pyarrow.float64(): numpy.float64}
_MOST_BYTES = 2**31 - 1
_FIRST_TIME, _LAST_TIME = -30_610_224_000_000_000, 253_402_300_799_999_999
"""The first microsecond of the year 1000, and the last one of the year 9999."""
_NO_NUMBER = pyarrow.nulls(1, pyarrow.float64())[0]


def as_rows(batch: Any) -> list[dict[str, Any]]:
    """The rows of a record batch or a data frame.

    Raises:
        Exception: Python cannot represent a value.
    """
    if hasattr(batch, "iloc"):
        names, columns = batch.columns, [values_of_series(batch.iloc[:, place]) for place in range(batch.shape[1])]
    else:
        names, columns = batch.schema.names, list(map(as_values, batch.columns))
    if not columns:
        return [{} for _ in range(len(batch))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


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
    """The values of an array; nanoseconds within lists and structs are pyarrow's own.

    Raises:
        Exception: Python cannot represent one of them.
    """
    kind = column.type.value_type if _TYPES.is_dictionary(column.type) else column.type
    if getattr(kind, "unit", None) != "ns":
        values: list[Any] = column.to_pylist()
        return values
    column = column.cast(kind)
    try:
        values = column.cast(_in_microseconds(kind)).to_pylist()
    except pyarrow.ArrowInvalid:  # not whole microseconds
        if len(column) > 1:
            return [as_values(column.slice(place, 1))[0] for place in range(len(column))]
        # Arrow's own text of a local time is wrong near the ends of its range, and in summers from 2038 on.
        column = column.cast(pyarrow.timestamp("ns", "UTC")) if getattr(kind, "tz", None) else column
        values = column.cast(pyarrow.string()).to_pylist()
    return values


def _in_microseconds(kind: Any) -> Any:
    if _TYPES.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.time64("us") if _TYPES.is_time(kind) else pyarrow.duration("us")


def numbers_of(column: Any) -> Any:
    """Numbers without nulls as an array of numpy's."""
    if _TYPES.is_boolean(column.type):
        return numpy.from_dlpack(column.cast(pyarrow.uint8())).view(numpy.bool_)
    return numpy.from_dlpack(column)


def as_array(column: Any) -> Any:
    """A column of numbers as an array of int64, float64 or bool; of vectors as a matrix, of texts of objects.

    Missing numbers are NaN.
    """
    kind = column.type
    if is_text(kind):
        return numpy.array(column.to_pylist(), dtype=object)
    if column.null_count:
        column = column.cast(pyarrow.uint8()) if _TYPES.is_boolean(kind) else column
        return numbers_of(column.cast(pyarrow.float64(), safe=False).fill_null(NAN))
    if is_vector(kind):
        return as_array(plain(column.flatten())).reshape(len(column), width_of(column))
    return numbers_of(column.cast(pyarrow.int64()) if kind == pyarrow.uint64() else column)


def plain(column: Any) -> Any:
    """A column without a dictionary; numbers have 64 bits, times are in microseconds, rounded as Python does."""
    if _TYPES.is_dictionary(column.type):  # of Polars' texts Arrow decodes none
        return pyarrow.DictionaryArray.from_arrays(column.indices, plain(column.dictionary)).dictionary_decode()
    kind = _plain_type(column.type)
    if kind == column.type:
        return column
    try:
        return column.cast(kind, safe=False)
    except pyarrow.ArrowNotImplementedError:  # text of Polars, with pyarrow 16
        return pyarrow.array(column.to_pylist(), kind)


def _plain_type(kind: Any) -> Any:
    if _TYPES.is_floating(kind):
        return pyarrow.float64()
    if _TYPES.is_integer(kind):
        return kind if kind == pyarrow.uint64() else pyarrow.int64()
    if _TYPES.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.large_string() if str(kind) == "string_view" else kind  # of Polars


def is_number(kind: Any) -> bool:
    """Whether a column of Arrow's holds numbers or truths."""
    return bool(_TYPES.is_integer(kind) or _TYPES.is_floating(kind) or _TYPES.is_boolean(kind))


def is_text(kind: Any) -> bool:
    """Whether a column of Arrow's holds texts."""
    return bool(_TYPES.is_string(kind) or _TYPES.is_large_string(kind))


def is_list(kind: Any) -> bool:
    """Whether a column of Arrow's holds lists."""
    return bool(_TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_fixed_size_list(kind))


def is_vector(kind: Any) -> bool:
    """Whether a column of Arrow's holds lists of numbers."""
    return is_list(kind) and is_number(kind.value_type)


def width_of(column: Any) -> int:
    """How many numbers each list of a column of vectors has; the first one decides. 0: there are no rows."""
    if _TYPES.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    return 0 if not len(column) else pyarrow.compute.list_value_length(column)[0].as_py() or 0


def vectors_of(column: Any) -> Any:
    """Lists of finite numbers as such; None if they are others."""
    has_floats = _TYPES.is_floating(column.type.value_type)
    if _TYPES.is_boolean(column.type.value_type):
        return None
    try:
        lists = column.cast(pyarrow.list_(pyarrow.float64() if has_floats else pyarrow.int64()))
    except pyarrow.ArrowInvalid:  # an integer needs more than signed 64 bits
        return None
    numbers = lists.flatten()
    is_plain = not numbers.null_count and (
        not has_floats or pyarrow.compute.all(pyarrow.compute.is_finite(numbers)).as_py() is not False
    )
    return lists if is_plain else None


def without_infinities(column: Any) -> Any:
    """The column with null in place of NaN and infinity."""
    finite = pyarrow.compute.is_finite(column)
    return column if pyarrow.compute.all(finite).as_py() else pyarrow.compute.if_else(finite, column, _NO_NUMBER)


def texts_of_times(column: Any) -> Any:
    """Dates, and timestamps in UTC or without a time zone, as ISO 8601 text, as ``isoformat`` writes it.

    Returns:
        None of other types, of nanoseconds that are not whole microseconds, and beyond the years 1000 to 9999.
    """
    kind = column.type
    zone = getattr(kind, "tz", None)
    if not (_TYPES.is_date(kind) or _TYPES.is_timestamp(kind)) or zone not in (None, "UTC"):
        return None
    try:
        times = column.cast(pyarrow.timestamp("us", zone)).cast(pyarrow.timestamp("us"))
    except pyarrow.ArrowInvalid:
        return None
    ends = pyarrow.compute.min_max(times.cast(pyarrow.int64()))
    if not _FIRST_TIME <= (ends["min"].as_py() or 0) <= (ends["max"].as_py() or 0) <= _LAST_TIME:
        return None
    texts = times.cast(pyarrow.string())
    if _TYPES.is_date(kind):
        return pyarrow.compute.utf8_slice_codeunits(texts, 0, 10)
    texts = pyarrow.compute.utf8_replace_slice(texts, 10, 11, "T")
    is_whole = pyarrow.compute.ends_with(texts, ".000000")
    texts = pyarrow.compute.if_else(is_whole, pyarrow.compute.utf8_slice_codeunits(texts, 0, 19), texts)
    return texts if zone is None else pyarrow.compute.binary_join_element_wise(texts, _UTC, _NOTHING)


def array_of(values: list[Any], kind: Any) -> Any:
    """Values of one Python type, and None, as an array of bool, int64, double or string.

    Raises:
        OverflowError: an integer needs more than 64 bits.
        UnicodeEncodeError: a text has a lone surrogate.
        pyarrow.ArrowException: the texts are too long for one array.
    """
    validity = None
    if None in values:
        validity = _bits(numpy.array([value is not None for value in values]))
        filler: Any = "" if kind == pyarrow.string() else 0
        values = [filler if value is None else value for value in values]
    if kind == pyarrow.string():
        buffers = _buffers_of_texts(values)
    else:
        numbers: Any = numpy.array(values, _DTYPES[kind])
        buffers = [_bits(numbers) if kind == pyarrow.bool_() else pyarrow.py_buffer(numbers)]
    return pyarrow.Array.from_buffers(kind, len(values), [validity, *buffers])


def numbers_as_array(numbers: Any) -> Any:
    """A one-dimensional array of numpy's as Arrow's; it keeps its memory, but for booleans."""
    is_bool = numbers.dtype.kind == "b"
    content = _bits(numbers) if is_bool else pyarrow.py_buffer(numpy.ascontiguousarray(numbers))
    return pyarrow.Array.from_buffers(pyarrow.from_numpy_dtype(numbers.dtype), len(numbers), [None, content])


def text_scalar(text: str) -> Any:
    """A text as an argument of Arrow's functions."""
    return array_of([text], pyarrow.string())[0]


def _buffers_of_texts(texts: list[str]) -> list[Any]:
    joined = "".join(texts)
    lengths = map(len, texts if joined.isascii() else [text.encode() for text in texts])
    offsets = numpy.zeros(len(texts) + 1, numpy.int64)
    numpy.cumsum(numpy.fromiter(lengths, numpy.int64, len(texts)), out=offsets[1:])
    if offsets[-1] > _MOST_BYTES:
        raise pyarrow.ArrowCapacityError("the texts have more than 2 GiB")
    return [pyarrow.py_buffer(offsets.astype(numpy.int32)), pyarrow.py_buffer(joined.encode())]


def _bits(truths: Any) -> Any:
    return pyarrow.py_buffer(numpy.packbits(truths, bitorder="little"))


ZERO, NAN = numbers_as_array(numpy.array([0.0, math.nan]))
_NOTHING, _UTC = map(text_scalar, ("", "+00:00"))
