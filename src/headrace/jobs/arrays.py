"""Makes Arrow arrays of Python's values. ``pyarrow.array`` imports pandas if it is installed, which takes a second."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pyarrow.compute

_DTYPES = {pyarrow.bool_(): numpy.bool_, pyarrow.int64(): numpy.int64, pyarrow.float64(): numpy.float64}
_MOST_BYTES = 2**31 - 1
_NO_NUMBER = pyarrow.nulls(1, pyarrow.float64())[0]


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
    """A one-dimensional array of numpy's as Arrow's; it keeps its memory."""
    if numbers.dtype.kind == "b":
        return truths(numbers)
    buffers = [None, pyarrow.py_buffer(numpy.ascontiguousarray(numbers))]
    return pyarrow.Array.from_buffers(pyarrow.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def truths(mask: Any) -> Any:
    """A boolean array of numpy's as Arrow's."""
    return pyarrow.Array.from_buffers(pyarrow.bool_(), len(mask), [None, _bits(mask)])


def text_scalar(text: str) -> Any:
    """A text as an argument of Arrow's functions, which would import pandas for a Python string."""
    return array_of([text], pyarrow.string())[0]


def vectors_of(column: Any) -> Any:
    """Lists of finite numbers as such; None if they are others."""
    has_floats = pyarrow.types.is_floating(column.type.value_type)
    if pyarrow.types.is_boolean(column.type.value_type):
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
