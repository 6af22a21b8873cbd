"""Decides when elements that wait in the caller's state, across bundles, fill a batch. Pure: state in, state out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.config import BatchingConfig


class Gathered(NamedTuple):
    """A summary of elements that wait together, in plain numbers that any state can hold."""

    target: float
    """The size at which they leave, set when the first one arrived."""
    due: float
    """When they leave at the latest, in seconds of the caller's clock."""
    earliest: int
    """Their smallest timestamp in microseconds, at which the caller holds the watermark until they have left."""
    elements: int = 0
    total: float = 0
    largest: float = 0

    def plus(self, size: float, timestamp: int) -> Gathered:
        """The summary with one more element."""
        target, due, earliest, elements, total, largest = self
        earliest = min(earliest, timestamp)
        return Gathered(target, due, earliest, elements + 1, total + size, size if size > largest else largest)

    def plus_many(self, count: int, timestamp: int) -> Gathered:
        """The summary with ``count`` more elements of size 1; ``timestamp`` is their earliest."""
        target, due, earliest, elements, total, largest = self
        return Gathered(target, due, min(earliest, timestamp), elements + count, total + count, max(1, largest))


class GatherPolicy:
    """Decides when elements fill a batch, and whether one more fits.

    Args:
        measured: whether sizes are known while elements wait; they are not if preprocessing comes later. Then a batch
            whose size is a weight is never full, and at most ``lookahead`` elements wait.
    """

    def __init__(self, config: BatchingConfig, *, measured: bool) -> None:
        self._config = config
        self._blind = config.learns_from_weights and not measured
        self._weighs = measured and (config.sizes_are_weights or config.sorts)
        self._most = config.lookahead if self._blind else config.max_batch_size
        self._heaviest = config.max_batch_size if config.sizes_are_weights else config.max_batch_weight or math.inf

    def take(self, gathered: Gathered, micros: Sequence[int], sizes: Sequence[float] | None) -> tuple[Gathered, int]:
        """Adds elements in order until the batch is full; returns the new summary and how many were added.

        Elements have timestamps in microseconds, ``micros``, and ``sizes``; None: 1 each.
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
        """Whether one more element of that size fits into the batch."""
        if gathered.elements >= self._most:
            return False
        return not self._weighs or self._weight(gathered.plus(size, gathered.earliest)) <= self._heaviest

    def is_full(self, gathered: Gathered) -> bool:
        """Whether the elements should leave."""
        if gathered.elements >= self._most or (self._weighs and self._weight(gathered) >= self._heaviest):
            return True
        if self._blind:
            return False
        if not self._config.learns_from_weights:
            return gathered.elements >= gathered.target
        enough = self._config.sizes_are_weights or gathered.elements >= self._config.min_batch_size
        return enough and self._weight(gathered) >= gathered.target

    def _weight(self, gathered: Gathered) -> float:
        """Weight of a batch of these elements; includes padding if elements are sorted to reduce it."""
        return gathered.elements * gathered.largest if self._config.sorts else gathered.total
