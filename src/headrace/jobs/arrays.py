"""Makes Arrow arrays of Python's values, and of the texts that JSON and CSV have for the values of a column.

``pyarrow.array`` imports pandas if it is installed, which takes a second. The texts are made vectorized, in a tenth of
the time that Python takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from headrace.rows.fitting import NAN, numbers_of

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


_ESCAPED = r'["\\\x00-\x1f]'
_SMALL, LARGE = 1e-4, 1e10
"""From where on Arrow writes floats with an exponent, and Python does not."""
_COMMA, _OPENS, _CLOSES = map(text_scalar, (", ", "[", "]"))
_NO_LENGTH = array_of([0], pyarrow.int64()).cast(pyarrow.int32())
_NOTHING, _QUOTE, _NULL, _WHOLE, _UTC = map(text_scalar, ("", '"', "null", ".0", "+00:00"))
_FIRST_TIME, _LAST_TIME = -30_610_224_000_000_000, 253_402_300_799_999_999
"""The first microsecond of the year 1000, and the last one of the year 9999."""
_TYPES = pyarrow.types


def joined(pieces: Sequence[Any], end: Any) -> bytes:
    """Lines of texts, one array or scalar behind the other."""
    lines = pyarrow.compute.binary_join_element_wise(*pieces, end, _NOTHING)
    return content_of(lines)


def content_of(texts: Any) -> bytes:
    """All texts, one behind the other."""
    _, offsets, content = texts.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)
    return bytes(memoryview(content)[ends[texts.offset] : ends[texts.offset + len(texts)]]) if content else b""


def json_texts(column: Any) -> Any:
    """The JSON text of each value. Vectorized: converting text columns value by value is slow."""
    kind = column.type
    if _TYPES.is_null(kind):
        return pyarrow.repeat(_NULL, len(column))
    if _TYPES.is_string(kind):
        texts = _quoted(column)
    elif _TYPES.is_floating(kind):
        texts = texts_of_floats(column)
    elif _TYPES.is_list(kind):
        texts = texts_of_lists(column)
    else:
        texts = column.cast(pyarrow.string())
    return texts.fill_null(_NULL) if texts.null_count else texts


def _quoted(column: Any) -> Any:
    if pyarrow.compute.any(pyarrow.compute.match_substring_regex(column, _ESCAPED)).as_py():
        texts = [text if text is None else encode_basestring(text) for text in column.to_pylist()]
        return array_of(texts, pyarrow.string())
    return pyarrow.compute.binary_join_element_wise(_QUOTE, column, _QUOTE, _NOTHING)


def texts_of_lists(column: Any) -> Any:
    """Lists of numbers as JSON; null where there is none."""
    lengths = pyarrow.compute.list_value_length(column).fill_null(_NO_LENGTH[0])
    ends = pyarrow.compute.cumulative_sum(lengths)
    offsets = pyarrow.concat_arrays([_NO_LENGTH, ends])
    numbers = pyarrow.ListArray.from_arrays(offsets, json_texts(pyarrow.compute.list_flatten(column)))
    together = pyarrow.compute.binary_join(numbers, _COMMA)
    texts = pyarrow.compute.binary_join_element_wise(_OPENS, together, _CLOSES, _NOTHING)
    if not column.null_count:
        return texts
    return pyarrow.compute.if_else(column.is_valid(), texts, pyarrow.nulls(1, pyarrow.string())[0])


def texts_of_floats(column: Any, small: float = _SMALL) -> Any:
    """Floats as Python's ``repr`` writes them; Arrow's text differs for whole, very small and very large numbers.

    With ``small`` 0, numbers with a fraction are as Arrow writes them.
    """
    numbers = numbers_of(column.fill_null(NAN))
    texts = column.cast(pyarrow.string())
    whole = numpy.rint(numbers) == numbers
    if whole.any():
        longer = pyarrow.compute.binary_join_element_wise(texts, _WHOLE, _NOTHING)
        texts = longer if whole.all() else pyarrow.compute.if_else(truths(whole), longer, texts)
    sizes = numpy.abs(numbers)
    differs = ((sizes < small) & (sizes > 0)) | ((sizes >= LARGE) & (whole | (small > 0)))
    if not differs.any():
        return texts
    others = list(map(repr, numbers[differs].tolist()))
    return pyarrow.compute.replace_with_mask(texts, truths(differs), array_of(others, pyarrow.string()))


def texts_of_times(column: Any) -> Any:
    """Dates, and timestamps in UTC or without a time zone, as ISO 8601 text, as ``isoformat`` writes it.

    Returns:
        None of other types, of nanoseconds that are not whole microseconds, and beyond the years 1000 to 9999.
    """
    kind = column.type
    zone = getattr(kind, "tz", None)
    if not (pyarrow.types.is_date(kind) or pyarrow.types.is_timestamp(kind)) or zone not in (None, "UTC"):
        return None
    try:
        times = column.cast(pyarrow.timestamp("us", zone)).cast(pyarrow.timestamp("us"))
    except pyarrow.ArrowInvalid:
        return None
    ends = pyarrow.compute.min_max(times.cast(pyarrow.int64()))
    if not _FIRST_TIME <= (ends["min"].as_py() or 0) <= (ends["max"].as_py() or 0) <= _LAST_TIME:
        return None
    texts = times.cast(pyarrow.string())
    if pyarrow.types.is_date(kind):
        return pyarrow.compute.utf8_slice_codeunits(texts, 0, 10)
    texts = pyarrow.compute.utf8_replace_slice(texts, 10, 11, "T")
    is_whole = pyarrow.compute.ends_with(texts, ".000000")
    texts = pyarrow.compute.if_else(is_whole, pyarrow.compute.utf8_slice_codeunits(texts, 0, 19), texts)
    return texts if zone is None else pyarrow.compute.binary_join_element_wise(texts, _UTC, _NOTHING)
