"""How many bytes an element takes while it waits, roughly."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any

_DEEPEST = 3
_SAMPLE = 16
"""Of a longer container, so many items stand for all."""


def footprint(value: Any, depth: int = 0) -> float:
    """Bytes of an array's buffer, of a text, or of what a container or an object holds; never raises."""
    try:
        nbytes = getattr(value, "nbytes", None)  # arrays, tensors, memory views
        if isinstance(nbytes, int):
            return nbytes
        own = sys.getsizeof(value, 64)
        if isinstance(value, str | bytes | bytearray) or depth == _DEEPEST:
            return own
        if isinstance(value, Mapping):
            return own + _items(list(islice(value.values(), _SAMPLE)), len(value), depth)
        if isinstance(value, list | tuple):
            return own + _items(value[:_SAMPLE], len(value), depth)
        fields = getattr(value, "__dict__", None)
        return own + (_items(list(fields.values())[:_SAMPLE], len(fields), depth) if fields else 0)
    except Exception:  # of somebody's property or container
        return 64


def _items(sample: Any, count: int, depth: int) -> float:
    return sum(footprint(item, depth + 1) for item in sample) * count / max(1, len(sample))
