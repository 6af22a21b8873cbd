"""Values on their way to another process or to a reader: new locks for old ones, text for what cannot be sent."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from html import escape
from itertools import islice
from typing import Any, Final

LOCKS: Final[Mapping[type, Callable[[Any], Any]]] = {
    type(threading.Lock()): lambda _: (threading.Lock, ()),
    type(threading.RLock()): lambda _: (threading.RLock, ()),
}
"""Entries for a pickler's ``dispatch_table``: as with Beam's pickler, what a lock guards is copied, too, so nobody else
holds the new one."""
_LONGEST_TEXT = 200
"""Most characters of a replacement text; a string that cannot be encoded is not shortened."""
_LONGEST_CELL, _LONGEST_DETAILS = 500, 10_000
"""Characters in a table for a notebook."""
_MOST_ROWS = 50
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


def html_table(title: str, rows: Iterable[tuple[str, str]], details: tuple[str, str] = ("", "")) -> str:
    """A table of HTML, a name and a text in each row; below it ``details``, a name and a long text, to be opened."""
    some = [*islice(rows, _MOST_ROWS + 1)]
    if len(some) > _MOST_ROWS:
        some[_MOST_ROWS:] = [("...", f"only the first {_MOST_ROWS} rows are shown")]
    lines = [f"<tr><th>{_cut(name)}</th><td>{_cut(text)}</td></tr>" for name, text in some]
    name, text = details
    more = f"<details><summary>{_cut(name)}</summary><pre>{_cut(text, _LONGEST_DETAILS)}</pre></details>"
    style = ' style="text-align: left"'
    return f"<table{style}><caption>{_cut(title)}</caption>{''.join(lines)}</table>{more if text else ''}"


def _cut(text: str, longest: int = _LONGEST_CELL) -> str:
    """Escapes a text for HTML, and leaves out the middle of a long one."""
    half = longest // 2
    return escape(encodable_text(text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"))
