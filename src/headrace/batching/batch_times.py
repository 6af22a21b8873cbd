"""What is remembered of a model's batches: the times of the last few of each size."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 15
"""Enough that most periods in which other programs slow the machine down are shorter."""


class BatchTimes(dict[int, "deque[tuple[float, float]]"]):
    """The last few batches of each power of two, as (size, seconds)."""

    def __init__(self) -> None:
        super().__init__()
        self.typical: dict[int, tuple[float, float]] = {}
        """Of each power of two the batch with the median time per element."""
        self.fast: dict[int, tuple[float, float]] = {}
        """The batch at the faster quartile, since other load only makes batches slower."""

    def add(self, size: float, seconds: float) -> None:
        """Adds a batch."""
        power = size_class(size)
        batches = self.setdefault(power, deque(maxlen=_REMEMBERED))
        batches.append((size, max(seconds, 1e-12)))
        by_speed = sorted(batches, key=lambda batch: batch[1] / batch[0])
        self.typical[power], self.fast[power] = (by_speed[(len(batches) - 1) // part] for part in (2, 4))

    def forget_above(self, size: float) -> None:
        """Forgets batches of larger powers of two than this size's."""
        for power in [power for power in self if power > size_class(size)]:
            del self[power], self.typical[power], self.fast[power]


def size_class(size: float) -> int:
    """Class of sizes between two powers of two: 1 for size 1, 2 for 2 and 3, 3 for 4 to 7; 0 below 1."""
    return int(min(size, 2**62)).bit_length()
