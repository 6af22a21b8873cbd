"""How large a batch should be: a fixed size, or the size that the model's own times call for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median, median_low
from typing import Protocol

from headrace.core.config import BatchingConfig


class SizeController(Protocol):
    """Says how large the next batch should be, and learns from those that ran."""

    def target(self) -> int:
        """Size for the next batch."""
        ...

    def observe(self, size: float, seconds: float) -> None:
        """Takes note that the model took ``seconds`` for a batch of ``size``."""
        ...


class FixedSize:
    """Every batch has the same size, so that a second run forms the same batches."""

    def __init__(self, size: int) -> None:
        self._size = size

    def target(self) -> int:
        """The size."""
        return self._size

    def observe(self, size: float, seconds: float) -> None:
        """Learns nothing."""


class AdaptiveSize:
    """Starts at the minimum and goes, at most twofold a step, to the size that the targets of BatchElements ask for.

    With the model's time fitted as t(n) = a + b n, the size is the smallest of: n at which the fixed cost a is only
    ``target_batch_overhead`` of t; n at which b n reaches ``target_batch_duration_secs``; and n at which t reaches
    ``target_batch_duration_secs_including_fixed_cost``. Sizes vary around it by ``variance``, so that a and b remain
    distinguishable. Thread-safe: the bundles of a process learn together.

    What is remembered is the last few batches of each power of two, so that small batches, which tell a, are not
    forgotten among the many large ones.

    Source: the documentation of ``apache_beam.BatchElements``.
    """

    _REMEMBERED = 9
    _STEP = 2

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._smallest, self._largest = config.adaptive_bounds
        self._lock = threading.Lock()
        self._seen: dict[int, deque[tuple[float, float]]] = {}
        self._largest_seen = 0.0
        self._last: float = self._smallest
        self._asked = 0

    def target(self) -> int:
        """Size for the next batch."""
        with self._lock:
            if not self._seen:
                return self._smallest
            ceiling = min(self._STEP * self._largest_seen, self._largest)
            best = max(self._best() * self._variation(), self._last / self._STEP)
            self._last = max(self._smallest, int(min(best, ceiling)))
            return int(self._last)

    def observe(self, size: float, seconds: float) -> None:
        """Takes note that the model took ``seconds`` for a batch of ``size``; batches without weight tell nothing."""
        if size < 1:
            return
        with self._lock:
            self._seen.setdefault(int(size).bit_length(), deque(maxlen=self._REMEMBERED)).append((size, seconds))
            self._largest_seen = max(self._largest_seen, size)

    def _best(self) -> float:
        config = self._config
        fixed, each = fit_line([_typical(batches) for batches in self._seen.values()])
        each = max(each, 1e-12)
        sizes = [self._largest]
        if config.target_batch_overhead:
            sizes.append(fixed / each * (1 / config.target_batch_overhead - 1))
        if config.target_batch_duration_secs:
            sizes.append(config.target_batch_duration_secs / each)
        if config.target_batch_duration_secs_including_fixed_cost:
            sizes.append((config.target_batch_duration_secs_including_fixed_cost - fixed) / each)
        return max(1.0, min(sizes))

    def _variation(self) -> float:
        """A little above and a little below, in turn."""
        self._asked += 1
        return 1 + self._config.variance * (-0.5, 0.0, 0.5, 0.0)[self._asked % 4]


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits seconds = fixed + each * size, neither below zero, undisturbed by a few points that are far too high.

    The slope is the median of the slopes between any two points (Theil, 1950; Sen, 1968): a batch that met a garbage
    collection, or a model's slow first call, does not move it. A single point cannot tell the costs apart; then all is
    fixed, so that another size comes next.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    each = max(0.0, median_low(slopes)) if slopes else 0.0
    return max(0.0, median(seconds - each * size for size, seconds in points)), each


def _typical(batches: deque[tuple[float, float]]) -> tuple[float, float]:
    """Of batches of similar size, the one whose time for an element is in the middle."""
    return sorted(batches, key=lambda batch: batch[1] / batch[0])[(len(batches) - 1) // 2]


def size_controller(config: BatchingConfig) -> SizeController:
    """The controller that a configuration calls for."""
    return FixedSize(config.max_batch_size) if config.fixed_size else AdaptiveSize(config)
