"""When elements that wait across bundles, kept by somebody else, are enough for a batch. Pure: state in, state out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.config import BatchingConfig


class Gathered(NamedTuple):
    """What there is to know of elements that wait together; plain numbers, so that it can be kept anywhere."""

    target: float
    """The size at which they go, asked for when the first one came."""
    due: float
    """When they go at the latest, in seconds of somebody's clock."""
    earliest: int
    """The smallest of their timestamps, in microseconds."""
    elements: int = 0
    """Their number."""
    total: float = 0
    """Sum of their sizes."""
    largest: float = 0
    """Their largest size."""

    def plus(self, size: float, timestamp: int) -> Gathered:
        """The same with one more element."""
        target, due, earliest, elements, total, largest = self
        earliest = min(earliest, timestamp)
        return Gathered(target, due, earliest, elements + 1, total + size, size if size > largest else largest)

    def plus_many(self, count: int, timestamp: int) -> Gathered:
        """The same with more elements of size 1, the earliest of which has that timestamp."""
        target, due, earliest, elements, total, largest = self
        return Gathered(target, due, min(earliest, timestamp), elements + count, total + count, max(1, largest))


class GatherPolicy:
    """Says when elements are enough for a batch, and when one more would be too many.

    Args:
        config: limits and targets.
        measured: whether sizes are known while elements wait: they are not where elements are preprocessed afterwards.
            A batch whose size is not a number of elements is then never full; at most ``lookahead`` of them wait.
    """

    def __init__(self, config: BatchingConfig, *, measured: bool) -> None:
        self._config = config
        self._blind = config.learns_from_weights and not measured
        self._weighs = measured and (config.sizes_are_weights or config.sorts)
        self._most = config.lookahead if self._blind else config.max_batch_size
        self._heaviest = config.max_batch_size if config.sizes_are_weights else config.max_batch_weight or math.inf

    def take(self, gathered: Gathered, micros: Sequence[int], sizes: Sequence[float] | None) -> tuple[Gathered, int]:
        """Lets as many elements join as may, in order, until they are enough; what is gathered then, and how many.

        Args:
            gathered: those before them.
            micros: their timestamps, in microseconds.
            sizes: of each; None: each counts as 1.
        """
        if sizes is None and not self._weighs:
            most = self._most if self._blind else min(self._most, gathered.target)
            count = min(len(micros), max(0 if gathered.elements else 1, math.ceil(most - gathered.elements)))
            return gathered.plus_many(count, min(micros[:count], default=gathered.earliest)), count
        for count, (size, stamp) in enumerate(zip(sizes or [1] * len(micros), micros, strict=True)):
            if gathered.elements and (self.is_full(gathered) or not self.fits(gathered, size)):
                return gathered, count
            gathered = gathered.plus(size, stamp)
        return gathered, len(micros)

    def fits(self, gathered: Gathered, size: float) -> bool:
        """Whether one more element of that size may share their batch."""
        if gathered.elements >= self._most:
            return False
        return not self._weighs or self._weight(gathered.plus(size, gathered.earliest)) <= self._heaviest

    def is_full(self, gathered: Gathered) -> bool:
        """Whether they should go."""
        if gathered.elements >= self._most or (self._weighs and self._weight(gathered) >= self._heaviest):
            return True
        if self._blind:
            return False
        if not self._config.learns_from_weights:
            return gathered.elements >= gathered.target
        enough = self._config.sizes_are_weights or gathered.elements >= self._config.min_batch_size
        return enough and self._weight(gathered) >= gathered.target

    def _weight(self, gathered: Gathered) -> float:
        """Of a batch of them; with padding, where elements are sorted for its sake."""
        return gathered.elements * gathered.largest if self._config.sorts else gathered.total
