"""The text of each value of a column, as JSON and CSV have it: vectorized, which takes a tenth of the time."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from headrace.jobs.arrays import array_of, text_scalar, truths
from headrace.rows.fitting import NAN, numbers_of

_ESCAPED = r'["\\\x00-\x1f]'
_SMALL, LARGE = 1e-4, 1e10
"""From where on Arrow writes floats with an exponent, and Python does not."""
_COMMA, _OPENS, _CLOSES = map(text_scalar, (", ", "[", "]"))
_NO_LENGTH = array_of([0], pyarrow.int64()).cast(pyarrow.int32())
_NOTHING, _QUOTE, _NULL, _WHOLE = map(text_scalar, ("", '"', "null", ".0"))
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


def json_texts(column: Any, *, is_json: bool) -> Any:
    """The JSON text of each value. Vectorized: converting text columns value by value is slow."""
    kind = column.type
    if _TYPES.is_null(kind):
        return pyarrow.repeat(_NULL, len(column))
    if _TYPES.is_string(kind) and not is_json:
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
    numbers = pyarrow.ListArray.from_arrays(offsets, json_texts(pyarrow.compute.list_flatten(column), is_json=False))
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
