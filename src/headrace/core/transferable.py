"""Values on their way to another process: new locks for old ones, and text for parts that cannot be sent."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

LOCKS: Final[Mapping[type, Callable[[Any], Any]]] = {
    type(threading.Lock()): lambda _: (threading.Lock, ()),
    type(threading.RLock()): lambda _: (threading.RLock, ()),
}
"""Entries for a pickler's ``dispatch_table``: as with Beam's pickler, what a lock guards is copied, too, so nobody else
holds the new one."""
_LONGEST_TEXT = 200
"""Most characters of a replacement text; a string that cannot be encoded is not shortened."""
_DEEPEST = 10
"""How many levels of containers are searched."""


def transferable(value: Any, travels: Callable[[Any], bool], depth: int = _DEEPEST) -> Any:
    """The value if it ``travels``; else one of the same shape, with text for each part of a container that does not.

    A string that does not keeps everything except its surrogates, which are escaped.
    """
    if travels(value):
        return value
    if isinstance(value, str):
        return encodable_text(value)
    if depth:
        made = with_parts(value, lambda part: transferable(part, travels, depth - 1))
        if made is not value and travels(made):
            return made
    return short_repr(value)


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """A tuple, list or dict with changed parts; the same object if nothing changed or it is no container."""
    kind = type(value)
    if kind is dict:
        pairs = {change(key): change(part) for key, part in value.items()}
        return value if _are_same([*pairs, *pairs.values()], [*value, *value.values()]) else pairs
    if kind not in {list, tuple} and not (isinstance(value, tuple) and hasattr(kind, "_make")):
        return value
    parts = list(map(change, value))
    if _are_same(parts, value):
        return value
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)


def encodable_text(text: str) -> str:
    """The text with surrogates escaped, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def short_repr(value: Any) -> str:
    """A short text for a value: its repr, or its class name."""
    try:
        return encodable_text(f"{value!r:.{_LONGEST_TEXT}}")
    except Exception:  # its repr fails, too
        return f"<{type(value).__qualname__}>"


def _are_same(new: Collection[Any], old: Collection[Any]) -> bool:
    return len(new) == len(old) and all(map(operator.is_, new, old))
