"""Writes values of any kind as lines of JSON, without losing data."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

_ENDLESS = "it contains itself, or values within values without end"


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
