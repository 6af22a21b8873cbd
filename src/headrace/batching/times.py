"""How long batches of different sizes took, and a line fitted to that."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import combinations
from statistics import median, median_low
from typing import TypeAlias


class Untimed(Enum):
    """Why there is no time to learn from."""

    OUT_OF_MEMORY = "the batch failed for lack of memory"
    OVERRAN = "the batch exceeded the time limit"
    NOT_ALONE = "the batch succeeded, but shared the processor with other work"


BatchTime: TypeAlias = float | Untimed
"""Seconds that the model took for a batch; or why they are not known."""


class BatchTimes(dict[int, "deque[tuple[float, float]]"]):
    """The last few batches of each power of two, as (size, seconds)."""

    _REMEMBERED = 15
    """Enough that most periods in which other programs slow the machine down are shorter."""

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[tuple[int, float], tuple[float, float]] = {}
        """What ``ranked`` found, by power and share: a batch changes one power only."""

    def add(self, size: float, seconds: float) -> None:
        """Adds a batch."""
        power = size_class(size)
        self.setdefault(power, deque(maxlen=self._REMEMBERED)).append((size, max(seconds, 1e-12)))
        self._forget_ranks({power})

    def forget_above(self, size: float) -> None:
        """Forgets batches of larger powers of two than this size's."""
        larger = {power for power in self if power > size_class(size)}
        for power in larger:
            del self[power]
        self._forget_ranks(larger)

    def ranked(self, share: float) -> dict[int, tuple[float, float]]:
        """For each power of two, the batch at quantile ``share`` of the time per element; 0 is the fastest."""
        for power, batches in self.items():
            if (power, share) not in self._ranks:
                self._ranks[power, share] = _ranked(batches, share)
        return {power: self._ranks[power, share] for power in self}

    def _forget_ranks(self, powers: set[int]) -> None:
        self._ranks = {key: rank for key, rank in self._ranks.items() if key[0] not in powers}


def size_class(size: float) -> int:
    """Class of sizes between two powers of two: 1 for size 1, 2 for 2 and 3, 3 for 4 to 7; 0 below 1."""
    return int(min(size, 2**62)).bit_length()


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits seconds = fixed + each * size, with both at least zero, robust against a few points that are far too high.

    The slope is the median of the slopes between any two points (Theil, 1950; Sen, 1968): a batch that met a garbage
    collection, or a model's slow first call, does not move it. A single point cannot separate the two costs; then all
    is fixed cost, so that another size is tried next.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    each = max(0.0, median_low(slopes)) if slopes else 0.0
    return max(0.0, median(seconds - each * size for size, seconds in points)), each


def _ranked(batches: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """Of batches of similar size, the one at quantile ``share`` of the time per element."""
    return sorted(batches, key=lambda batch: batch[1] / batch[0])[int((len(batches) - 1) * share)]
