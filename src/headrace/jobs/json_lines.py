"""JSON lines: written of values of any kind without losing data; read as Arrow columns, and by Python elsewhere.

Arrow takes 1 for 1.0, and knows neither the order of an object's names nor which of them are missing. A regular
expression, made of the first lines, therefore says which lines have the same names in the same order, with values of
the same kinds; the others are read line by line.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.json

from headrace.core.conversion import DEEPEST, is_deep
from headrace.jobs.files import Source
from headrace.jobs.opening import not_utf8, open_text
from headrace.rows.blocks import BrokenLine, Record, Row
from headrace.rows.values import numbers_of

_ENDLESS = "it contains itself, or values within values without end"
_FEW_LINES = 64
_ARROW_BYTES = 1 << 18
_NEWLINE = 10
_SPACE = r"[ \t]*"
_TEXT = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*"'
_INTEGER = "-?(?:0|[1-9][0-9]{0,17})"
_FLOAT = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
_READ_AS = {"format": "jsonl"}


def _list_of(pattern: str) -> str:
    return rf"\[{_SPACE}(?:(?:{pattern}){_SPACE}(?:,{_SPACE}(?:{pattern}){_SPACE})*)?\]"


_KINDS: dict[Any, tuple[str, Any]] = {
    str: (_TEXT, pyarrow.string()),
    int: (_INTEGER, pyarrow.int64()),
    float: (_FLOAT, pyarrow.float64()),
    bool: ("true|false", pyarrow.bool_()),
    type(None): ("null", pyarrow.null()),
    list[int]: (_list_of(_INTEGER), pyarrow.list_(pyarrow.int64())),
    list[float]: (_list_of(_FLOAT), pyarrow.list_(pyarrow.float64())),
}


class JsonEncodeError(ValueError):
    """A value cannot be written as JSON: it contains itself, or one of its own methods raises."""


def as_line(record: Any, *, bytes_too: bool = True) -> bytes:
    """A record, or any other value, as a line of JSON.

    NaN and infinity become null, bytes base64, arrays lists, keys text, and unknown types text.

    Raises:
        JsonEncodeError: it cannot be written; the cause says why. It holds bytes, and they are not wanted.
    """
    encode, known = (_encode, _to_json_type) if bytes_too else (_encode_without_bytes, _without_bytes)
    try:
        try:
            text = encode(record)
        except (ValueError, TypeError):
            text = encode(_to_json_slow(record, known))
    except Exception as error:
        cause = ValueError(_ENDLESS) if isinstance(error, RecursionError) else error
        raise JsonEncodeError(str(cause)) from cause
    # UTF-8 cannot hold a lone surrogate: write JSON's escape for it, \udXXX.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _to_json_type(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if getattr(getattr(value, "dtype", None), "kind", None) in ("m", "M"):
        return list(value) if value.ndim else _time_of(value[()])
    if isinstance(value, timedelta):
        return str(value) if getattr(value, "nanoseconds", 0) else _duration_text(value)  # pandas has them
    if isinstance(value, datetime) and str(value) == "NaT":  # of pandas
        return None
    # Arrays, tensors and their scalars; dates; pydantic models. TensorFlow's tensors need numpy() before tolist().
    for method in ("tolist", "item", "isoformat", "model_dump", "numpy"):
        if callable(getattr(value, method, None)) and not isinstance(value, type):
            return getattr(value, method)()
    return list(value) if isinstance(value, set | frozenset) else str(value)


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("CSV has no bytes; leave them out with --keep, or write .jsonl or .parquet, which have base64")
    return _to_json_type(value)


def _time_of(value: Any) -> Any:
    """A scalar of numpy's ``datetime64`` or ``timedelta64`` as Python's or, where that loses digits, as text."""
    if str(value) == "NaT":
        return None
    known = value.tolist()
    if not isinstance(known, int):
        return known
    whole = value.astype(f"{value.dtype.kind}8[us]")
    return str(value) if whole != value or isinstance(whole.tolist(), int) else whole.tolist()


def _duration_text(value: timedelta) -> str:
    """ISO 8601 text, such as ``P1DT2H3M4.000005S``; a fraction that is not zero has six digits."""
    seconds, fraction = divmod(abs(value), timedelta(seconds=1))
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    digits = f".{fraction.microseconds:06}" if fraction else ""
    return f"{'-' if value < timedelta(0) else ''}P{days}DT{hour}H{minute}M{second}{digits}S"


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_to_json_type).encode
_encode_without_bytes = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_without_bytes).encode


def _to_json_slow(value: Any, to_known: Callable[[Any], Any]) -> Any:
    """For values that JSONEncoder does not pass to ``default``: NaN, infinity, and keys that are not text."""
    inner = partial(_to_json_slow, to_known=to_known)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        fields = {_text_of(key): inner(one) for key, one in value.items()}
        if len(fields) < len(value):
            raise ValueError("two keys have the same text")
        return fields
    if isinstance(value, list | tuple):
        return list(map(inner, value))
    return inner(to_known(value))


def _text_of(key: Any) -> str:
    if isinstance(key, str):
        return key
    return _encode(key) if isinstance(key, int) else str(key)


def utf8(text: str) -> str:
    """Valid UTF-8: lone surrogates become their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold the text: it has no lone surrogate."""
    return utf8(text) == text


def read_json_blocks(source: Source) -> Iterator[Any]:
    """The rows of a file, as record batches or, where Arrow might read them differently, as lists of records."""
    with open_text(source) as lines:
        if source.part is not None:
            lines.go_to(source.part)
        shape = None
        while text := lines.ahead():
            shape, pieces = _pieces(text, shape)
            for some, batch in pieces:
                first = lines.line + 1
                lines.take(some, None if batch is None else len(batch))
                yield records_of(source, some.split(b"\n")[:-1], first) if batch is None else batch


def _pieces(text: bytes, shape: _Shape | None) -> tuple[_Shape | None, list[tuple[bytes, Any]]]:
    """Neighbouring lines, each with their record batch or None; and the shape that most of the lines have."""
    lines = _lines_of(text)
    alike = None if shape is None else shape.match(lines)
    if alike is None or 2 * alike.sum() < len(lines):
        shape = _Shape.of(lines)
        alike = None if shape is None else shape.match(lines)
    if shape is None or alike is None:
        return shape, [(text, None)]
    cuts = [0, *(numpy.flatnonzero(alike[1:] != alike[:-1]) + 1).tolist(), len(lines)]
    if len(cuts) > 2 + len(lines) // _FEW_LINES:
        return shape, [(text, None)]
    offsets = numpy.frombuffer(lines.buffers()[1], numpy.int64)
    texts = [text[offsets[start] : offsets[stop]] for start, stop in pairwise(cuts)]
    return shape, [
        (some, shape.parsed(some) if alike[start] else None) for some, start in zip(texts, cuts, strict=False)
    ]


class _Shape:
    """Names in an order, each with one kind of values or null."""

    def __init__(self, kinds: dict[str, Any]) -> None:
        fields = (
            f'"{re.escape(name)}"{_SPACE}:{_SPACE}(?:{_KINDS[kind][0]}|null){_SPACE}' for name, kind in kinds.items()
        )
        between = f",{_SPACE}"
        self._pattern = f"^{_SPACE}\\{{{_SPACE}{between.join(fields)}\\}}[ \\t\\r]*\n$"
        self._schema = pyarrow.schema([(name, _KINDS[kind][1]) for name, kind in kinds.items()])

    @classmethod
    def of(cls, lines: Any) -> _Shape | None:
        """The shape of most of a sample of lines; None if Arrow cannot have it."""
        places = range(0, len(lines), max(1, len(lines) // _FEW_LINES))
        sample = [lines[place].as_py() for place in places]  # to slice in steps, pyarrow 16 imports pandas
        rows = [row for row in map(_row_or_none, sample) if row]
        if not rows:
            return None
        names, _ = Counter(map(tuple, rows)).most_common(1)[0]
        kinds: dict[str, Any] = {}
        for name in names:
            values = [row[name] for row in rows if row.get(name) not in (None, [])]
            kinds[name] = Counter(map(_kind_of, values)).most_common(1)[0][0] if values else type(None)
        are_plain = all(json.dumps(name, ensure_ascii=False) == f'"{name}"' and is_utf8(name) for name in names)
        return cls(kinds) if are_plain and _KINDS.keys() >= set(kinds.values()) else None

    def match(self, lines: Any) -> Any:
        """Which lines have this shape, as an array; None if that cannot be said."""
        try:
            found = pyarrow.compute.match_substring_regex(lines, self._pattern)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):  # too many names for a regular expression
            return None
        return numbers_of(found)

    def parsed(self, text: bytes) -> Any:
        """Lines of this shape as a record batch; None if Arrow refuses them."""
        try:
            text.decode()
            table = pyarrow.json.read_json(
                pyarrow.BufferReader(text),
                pyarrow.json.ReadOptions(use_threads=len(text) > _ARROW_BYTES, block_size=_ARROW_BYTES),
                pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="error"),
            )
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            return None
        return table.combine_chunks().to_batches()[0]


def _kind_of(value: Any) -> Any:
    """A key of ``_KINDS``, if it is one: lists of numbers are of the kind of all of them."""
    if type(value) is not list:
        return type(value)
    kinds = set(map(type, value))
    return list[kinds.pop()] if len(kinds) == 1 else list  # type: ignore[misc]


def _lines_of(text: bytes) -> Any:
    """The lines with their ends, as an Arrow array over the same memory."""
    ends = numpy.flatnonzero(numpy.frombuffer(text, numpy.uint8) == _NEWLINE) + 1
    offsets = numpy.concatenate([[0], ends]).astype(numpy.int64)
    return pyarrow.LargeBinaryArray.from_buffers(
        pyarrow.large_binary(), len(ends), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(text)]
    )


def _row_or_none(line: bytes) -> Row | None:
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        return row if type(row) is dict else None
    return None


def records_of(source: Source, lines: Sequence[bytes], first: int) -> list[Record]:
    """The rows of lines; those without any character but spaces are left out."""
    return [_record(source, line, number) for number, line in enumerate(lines, first) if line.strip()]


def strict_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, an object in it has a name twice, or values are nested more than 200 deep.
    """
    try:
        value = _parsed(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if text.count("[") + text.count("{") > DEEPEST and is_deep(value):
        raise ValueError(f"it has values within values, more than {DEEPEST} deep")
    return value


def _record(source: Source, line: bytes, number: int) -> Record:
    try:
        row = strict_json(line.decode())
        if type(row) is dict:
            return row
        error: Exception = TypeError(f"a row must be a JSON object, not {type(row).__name__}")
    except ValueError as wrong:
        error = not_utf8(wrong) if isinstance(wrong, UnicodeDecodeError) else wrong
    return BrokenLine(line.decode("utf-8", "backslashreplace"), source.path, number, error, read_as=_READ_AS)


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises for duplicate names: JSON's reader would silently drop the first value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the object has {next(name for name in names if names.count(name) > 1)!r} twice")
    return fields


_parsed = json.JSONDecoder(object_pairs_hook=_unique_fields).decode
