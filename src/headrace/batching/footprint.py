"""Estimates how many bytes elements take while they wait."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_DEEPEST = 3
_SAMPLE = 16
"""How many items of a longer container are measured; they stand for all."""


def footprint(value: Any, depth: int = 0) -> float:
    """Estimated bytes of an array's buffer, a text, or the contents of a container or object; never raises."""
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
    except Exception:  # from a user's property or container
        return 64


def _items(sample: Any, count: int, depth: int) -> float:
    return sum(footprint(item, depth + 1) for item in sample) * count / max(1, len(sample))


class WaitingBytes:
    """Estimates the bytes of a growing list's elements, and measures only some of them, block by block.

    Measuring an element takes longer than queueing it, so of a block of small elements only a few are measured. After
    a large one all are, until many blocks in a row are small. The larger the elements, the shorter the blocks, so that
    the bound is exceeded by at most a sixteenth, unless large elements begin to arrive after very many small ones.

    Args:
        bound: the number of bytes whose crossing must be noticed in time.
    """

    _LONGEST_BLOCK = 128
    _SHARE = 1 / 16
    """Largest part of the bound that one block may take."""
    _LIGHT = 1 / 1024
    """Part of the bound below which an element is small, so that a few stand for all."""
    _FEW = 4
    _PATIENCE = 32
    """How many small blocks in a row are measured in full after a large element."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._block = 1
        self._drawn = 0
        self._careful = 0
        """How many more blocks of small elements to measure in full."""
        self.clear()

    def clear(self) -> None:
        """Starts with an empty list, but keeps the block length: elements are likely to be as large as before."""
        self.bytes = 0.0
        self._seen = 0
        self.next_measurement: float = 1
        """The length of the list at which to call ``measure`` again."""

    def measure(self, elements: Sequence[Any]) -> None:
        """Measures the elements that are new in the list."""
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
        self.next_measurement = self._seen + self._block

    def _few_of(self, elements: Sequence[Any], count: int) -> Sequence[Any]:
        """A few of the last ``count``, at pseudo-random places that avoid patterns in the data but are reproducible."""
        drawn = self._drawn = (self._drawn * 1_664_525 + 1_013_904_223) % 2**32  # Knuth, Lewis: Numerical Recipes
        return [elements[-1 - (drawn >> shift) % count] for shift in (4, 10, 16, 22)]
