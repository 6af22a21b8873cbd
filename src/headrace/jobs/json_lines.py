"""Writes values of any kind as lines of JSON, without losing data."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from headrace.rows.durations import duration_text

_ENDLESS = "it contains itself, or values within values without end"
_FLAT = {str, int, float, bool, type(None)}
_TEXT = {str}


class JsonEncodeError(ValueError):
    """A value cannot be written as JSON: it contains itself, or one of its own methods raises."""


def as_line(record: Any, *, bytes_too: bool = True) -> bytes:
    """A record, or any other value, as a line of JSON.

    NaN and infinity become null, bytes base64, arrays lists, and unknown types text. Keys that are not strings become
    strings; if that collides with another key of the mapping, an underscore is appended. (Columns beside a prediction
    always have string keys.)

    Raises:
        JsonEncodeError: it cannot be written; the cause says why. It holds bytes, and they are not wanted.
    """
    encode, known = (_encode, _to_json_type) if bytes_too else (_encode_without_bytes, _without_bytes)
    try:
        try:
            _checked(record["prediction"] if type(record) is dict and "prediction" in record else record)
            text = encode(record)
        except (ValueError, TypeError):
            text = encode(_to_json_slow(record, known))
    except RecursionError:
        cause = ValueError(_ENDLESS)
        raise JsonEncodeError(str(cause)) from cause
    except Exception as error:
        raise JsonEncodeError(str(error)) from error
    # UTF-8 cannot hold a lone surrogate: write JSON's escape for it, \udXXX.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _to_json_type(value: Any) -> Any:
    """Converts a value that JSON does not know to one that it does."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if getattr(getattr(value, "dtype", None), "kind", None) in ("m", "M"):
        return list(value) if value.ndim else _time_of(value[()])
    if isinstance(value, timedelta):
        return duration_text(value, getattr(value, "nanoseconds", 0))  # pandas has them
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
    kind = value.dtype.kind
    if value.dtype.str.endswith("[ns]"):
        whole = value.astype(f"{kind}8[us]")
        if whole == value:
            return whole.tolist()
        if kind == "m":
            return duration_text(timedelta(microseconds=known // 1000), known % 1000)
    return str(value)


def _checked(value: Any) -> Any:
    """The value, checked.

    Raises:
        ValueError: two keys of a mapping within it have the same text; JSON readers would drop one.
    """
    waiting = [] if type(value) in _FLAT else [value]
    seen: set[int] = set()
    for one in waiting:
        if isinstance(one, dict):
            if not _TEXT.issuperset(map(type, one)) and len(set(map(_text_of, one))) < len(one):
                raise ValueError("two keys have the same text")
            values: Collection[Any] = one.values()
        else:
            values = one if isinstance(one, list | tuple) else ()
        if not _FLAT.issuperset(map(type, values)) and id(one) not in seen:
            seen.add(id(one))  # it may contain itself
            waiting += values
    return value


def _known_and_checked(value: Any, to_known: Callable[[Any], Any] = _to_json_type) -> Any:
    known = to_known(value)
    holds_objects = getattr(getattr(value, "dtype", None), "hasobject", True)  # arrays of numbers hold none
    return _checked(known) if holds_objects else known


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_known_and_checked).encode
_encode_without_bytes = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, default=partial(_known_and_checked, to_known=_without_bytes)
).encode


def _text_of(key: Any) -> Any:
    return key if isinstance(key, str) else _encode(key)


def _to_json_slow(value: Any, to_known: Callable[[Any], Any]) -> Any:
    """The slow path, for values that JSONEncoder does not pass to ``default``."""
    inner = partial(_to_json_slow, to_known=to_known)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return dict(zip(_names(value), map(inner, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(inner, value))
    return inner(to_known(value))


def _names(keys: Collection[Any]) -> list[str]:
    """A mapping's keys as distinct strings."""
    taken = {key for key in keys if isinstance(key, str)}
    names = []
    for key in keys:
        name = key
        if not isinstance(key, str):
            name = _encode(key) if isinstance(key, int) else str(key)
            while name in taken:
                name += "_"
            taken.add(name)
        names.append(name)
    return names
