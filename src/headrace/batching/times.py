"""What batches of different sizes took, and the line through it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median, median_low


class Times(dict[int, "deque[tuple[float, float]]"]):
    """The last few batches of each power of two, (size, seconds) each."""

    _REMEMBERED = 15
    """Longer than most spells in which others keep the machine busy."""

    def add(self, size: float, seconds: float) -> None:
        """Takes one more."""
        self.setdefault(power_of(size), deque(maxlen=self._REMEMBERED)).append((size, max(seconds, 1e-12)))

    def forget_above(self, size: float) -> None:
        """Forgets batches that were more than about that large."""
        for power in [power for power in self if power > power_of(size)]:
            del self[power]

    def ranked(self, share: float) -> dict[int, tuple[float, float]]:
        """Of each power of two the batch than which so large a share took less time for an element."""
        return {power: _ranked(batches, share) for power, batches in self.items()}


def power_of(size: float) -> int:
    """The size's power of two, counted from 1; 0 below that."""
    return int(min(size, 2**62)).bit_length()


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits seconds = fixed + each * size, neither below zero, undisturbed by a few points that are far too high.

    The slope is the median of the slopes between any two points (Theil, 1950; Sen, 1968): a batch that met a garbage
    collection, or a model's slow first call, does not move it. A single point cannot tell the costs apart; then all is
    fixed, so that another size comes next.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    each = max(0.0, median_low(slopes)) if slopes else 0.0
    return max(0.0, median(seconds - each * size for size, seconds in points)), each


def _ranked(batches: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """Of batches of similar size, the one than which so large a share took less time for an element."""
    return sorted(batches, key=lambda batch: batch[1] / batch[0])[int((len(batches) - 1) * share)]
