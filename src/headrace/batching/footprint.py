"""How many bytes an element takes while it waits, roughly."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_DEEPEST = 3
_SAMPLE = 16
"""Of a longer container, so many items stand for all."""


def footprint(value: Any, depth: int = 0) -> float:
    """Bytes of an array's buffer, of a text, or of what a container or an object holds; never raises."""
    try:
        nbytes = None if type(value) in _PLAIN else getattr(value, "nbytes", None)  # arrays, tensors, memory views
        if isinstance(nbytes, int):
            return nbytes
        own = sys.getsizeof(value, 64)
        if type(value) in _PLAIN or isinstance(value, str | bytes | bytearray) or depth == _DEEPEST:
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


class WaitingBytes:
    """How many bytes the elements of a growing list take, roughly; looks at the list only now and then.

    Of many small elements it looks at a few, since to weigh an element takes longer than to queue it. Where it has met
    a large one it looks at all, until many in a row are small; the larger, the sooner, so that the bound is exceeded by
    no more than a sixteenth, unless large ones begin to come after very many small ones.

    Args:
        bound: bytes of which it is to be known in time whether they are reached.
    """

    _LONGEST_BLOCK = 128
    _SHARE = 1 / 16
    """Of the bound: so much may come between two looks."""
    _LIGHT = 1 / 1024
    """Of the bound: lighter elements stand for each other."""
    _FEW = 4
    _PATIENCE = 32
    """Blocks."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._block = 1
        self._drawn = 0
        self._careful = 0
        """For how many blocks, if they are light, to look at all."""
        self.clear()

    def clear(self) -> None:
        """The list is a new one. Elements are likely to be as heavy as before."""
        self.bytes = 0.0
        self._seen = 0
        self.next_look: float = 1
        """The length of the list at which to look again."""

    def look(self, elements: Sequence[Any]) -> None:
        """Weighs what is new."""
        count = len(elements) - self._seen
        looks_at_all = self._careful or count <= self._FEW
        sizes = list(map(footprint, elements[self._seen :] if looks_at_all else self._few_of(elements, count)))
        largest = max(sizes)
        if largest > self._LIGHT * self._bound:
            self._careful = self._PATIENCE
            sizes = sizes if looks_at_all else list(map(footprint, elements[self._seen :]))
            largest = max(sizes)
        elif self._careful:
            self._careful -= 1
        self.bytes += sum(sizes) * (count / len(sizes))
        self._seen += count
        fitting = min(self._LONGEST_BLOCK, self._SHARE * self._bound / max(1, largest))
        self._block = max(1, min(2 * self._block, int(fitting)))
        self.next_look = self._seen + self._block

    def _few_of(self, elements: Sequence[Any], count: int) -> Sequence[Any]:
        """Of the last so many, at places that look random, as there may be a pattern, and are the same in each run."""
        drawn = self._drawn = (self._drawn * 1_664_525 + 1_013_904_223) % 2**32  # Knuth, Lewis: Numerical Recipes
        return [elements[-1 - (drawn >> shift) % count] for shift in (4, 10, 16, 22)]
