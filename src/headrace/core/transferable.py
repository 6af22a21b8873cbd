"""A text in place of what cannot go to another process, and the rest exact."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

_LONGEST_TEXT = 200
"""Characters that stand for something; a text that cannot be encoded keeps all of its own."""
_DEEPEST = 10
"""Containers within each other that are looked through."""


def transferable(value: Any, travels: Callable[[Any], bool], depth: int = _DEEPEST) -> Any:
    """The value, if it travels; else a value of the same make, with a text for each part that does not.

    Parts are looked for in tuples (named ones too), lists and dicts; of anything else a text stands for the whole. A
    text that does not travel keeps all but its surrogates, which are escaped.

    Args:
        value: anything.
        travels: whether a value arrives in another process. It is asked for the parts of what does not.
        depth: how many containers within each other are looked through.
    """
    if travels(value):
        return value
    if isinstance(value, str):
        return encodable_text(value)
    if depth:
        made = with_parts(value, lambda part: transferable(part, travels, depth - 1))
        if made is not value and travels(made):
            return made
    return shown(value)


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """A tuple, list or dict of changed parts; the very value where none has changed, and where it is no container."""
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
    """The same text; surrogates, which UTF-8 has no bytes for, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown(value: Any) -> str:
    """A short text for a value: what it says of itself, or its class."""
    try:
        return encodable_text(f"{value!r:.{_LONGEST_TEXT}}")
    except Exception:  # its own words fail, too
        return f"<{type(value).__qualname__}>"


def _are_same(new: Collection[Any], old: Collection[Any]) -> bool:
    return len(new) == len(old) and all(map(operator.is_, new, old))
