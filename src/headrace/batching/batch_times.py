"""What is remembered of a model's batches: the times of the last few of each size."""

from __future__ import annotations

from collections import deque


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
        self._ranks = {key: rank for key, rank in self._ranks.items() if key[0] != power}

    def forget_above(self, size: float) -> None:
        """Forgets batches of larger powers of two than this size's."""
        for power in [power for power in self if power > size_class(size)]:
            del self[power]
        self._ranks.clear()

    def ranked(self, share: float) -> dict[int, tuple[float, float]]:
        """For each power of two, the batch at quantile ``share`` of the time per element; 0 is the fastest."""
        for power, batches in self.items():
            if (power, share) not in self._ranks:
                by_speed = sorted(batches, key=lambda batch: batch[1] / batch[0])
                self._ranks[power, share] = by_speed[int((len(batches) - 1) * share)]
        return {power: self._ranks[power, share] for power in self}


def size_class(size: float) -> int:
    """Class of sizes between two powers of two: 1 for size 1, 2 for 2 and 3, 3 for 4 to 7; 0 below 1."""
    return int(min(size, 2**62)).bit_length()
