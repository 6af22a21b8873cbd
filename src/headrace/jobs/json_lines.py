"""Values of any kind as lines of JSON, in which nothing is lost."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from headrace.jobs.durations import duration_text

_DEEPEST = 500
_ENDLESS = "it contains itself, or values within values without end"
_FLAT = {str, int, float, bool, type(None)}
_TEXT = {str}


class NoJsonError(ValueError):
    """A value cannot be written as JSON: it contains itself, or a method of its own that says what it is raises."""


def as_line(record: Any) -> bytes:
    """A record, or another value, as a line of JSON.

    NaN and infinities are null, bytes base64, arrays as lists, the unknown as text. A key that is no text becomes one;
    if another key of its mapping has that text, with an underscore. (Beside a prediction, columns have no such keys.)

    Raises:
        NoJsonError: it cannot be written; its cause says why.
    """
    try:
        try:
            _checked(record["prediction"] if type(record) is dict and "prediction" in record else record)
            text = _encode(record)
        except (ValueError, TypeError):
            text = _encode(_plain(record))
    except RecursionError:
        cause = ValueError(_ENDLESS)
        raise NoJsonError(str(cause)) from cause
    except Exception as error:
        raise NoJsonError(str(error)) from error
    # A lone surrogate, which UTF-8 does not have, becomes \udXXX: the escape that JSON has for it.
    return text.encode("utf-8", "backslashreplace") + b"\n"


class Endless:
    """In the place of a value that ``is_endless``, which Beam would follow until the process dies."""

    def tolist(self) -> Any:
        """Raises ValueError."""
        raise ValueError(_ENDLESS)


def is_endless(value: Any) -> bool:
    """Whether a dict, list or tuple contains itself, or more levels than can be written."""
    level = [value]
    for _ in range(_DEEPEST):
        inner: dict[int, Any] = {}
        for one in level:
            values = one.values() if isinstance(one, dict) else one
            if not _FLAT.issuperset(map(type, values)):
                inner.update((id(value), value) for value in values if isinstance(value, dict | list | tuple))
        if not inner:
            return False
        level = list(inner.values())
    return True


def _known(value: Any) -> Any:
    """Something that JSON does not know as something that it does."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    # Arrays and tensors, their scalars, dates, pydantic's; TensorFlow's tensors become arrays first.
    for method in ("tolist", "item", "isoformat", "model_dump", "numpy"):
        if callable(getattr(value, method, None)) and not isinstance(value, type):
            return getattr(value, method)()
    if isinstance(value, timedelta):
        return duration_text(value)
    return list(value) if isinstance(value, set | frozenset) else str(value)


def _checked(value: Any) -> Any:
    """The same.

    Raises:
        ValueError: two keys of a mapping within it have the same text, of which a reader of JSON drops one.
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
            seen.add(id(one))  # of what may contain itself
            waiting += values
    return value


def _known_and_checked(value: Any) -> Any:
    known = _known(value)
    holds_objects = getattr(getattr(value, "dtype", None), "hasobject", True)  # as an array of numbers does not
    return _checked(known) if holds_objects else known


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_known_and_checked).encode


def _text_of(key: Any) -> Any:
    return key if isinstance(key, str) else _encode(key)


def _plain(value: Any) -> Any:
    """The slow way, for values that hold what even ``default`` of JSONEncoder is not asked about."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return dict(zip(_names(value), map(_plain, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(_known(value))


def _names(keys: Collection[Any]) -> list[str]:
    """The texts of a mapping's keys, each of them different."""
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
