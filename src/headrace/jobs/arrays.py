"""Makes Arrow arrays of Python's values. ``pyarrow.array`` imports pandas if it is installed, which takes a second."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow

_DTYPES = {pyarrow.bool_(): numpy.bool_, pyarrow.int64(): numpy.int64, pyarrow.float64(): numpy.float64}
_MOST_BYTES = 2**31 - 1


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


def truths(mask: Any) -> Any:
    """A boolean array of numpy's as Arrow's."""
    return pyarrow.Array.from_buffers(pyarrow.bool_(), len(mask), [None, _bits(mask)])


def text_scalar(text: str) -> Any:
    """A text as an argument of Arrow's functions, which would import pandas for a Python string."""
    return array_of([text], pyarrow.string())[0]


def truths_of(column: Any) -> Any:
    """Booleans without nulls as an array of numpy's."""
    return numpy.from_dlpack(column.cast(pyarrow.uint8())).view(numpy.bool_)


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
