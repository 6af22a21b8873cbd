"""How large a batch should be: a fixed size, or the size that the model's own times call for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from headrace.core.config import BatchingConfig

_ENOUGH_TO_TRIM = 10
"""How many points a fit must have before some are left out."""


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
    """Starts at the minimum and grows, at most twofold a step, to the size that the targets of BatchElements ask for.

    With the model's time fitted as t(n) = a + b n over the last 100 batches, the size is the smallest of: n at which
    the fixed cost a is only ``target_batch_overhead`` of t; n at which b n reaches ``target_batch_duration_secs``; and
    n at which t reaches ``target_batch_duration_secs_including_fixed_cost``. Sizes vary around it by ``variance``, so
    that a and b remain distinguishable. Thread-safe: the bundles of a process learn together.

    Source: the documentation of ``apache_beam.BatchElements``.
    """

    _REMEMBERED = 100
    _GROWTH = 2

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float]] = deque(maxlen=self._REMEMBERED)
        self._asked = 0

    def target(self) -> int:
        """Size for the next batch."""
        with self._lock:
            smallest, largest = self._config.min_batch_size, self._config.max_batch_size
            if not self._seen:
                return smallest
            ceiling = self._GROWTH * max(size for size, _ in self._seen)
            best = min(self._best(), ceiling)
            return int(max(smallest, min(best * self._variation(), ceiling, largest)))

    def observe(self, size: float, seconds: float) -> None:
        """Takes note that the model took ``seconds`` for a batch of ``size``."""
        with self._lock:
            self._seen.append((size, seconds))

    def _best(self) -> float:
        config = self._config
        fixed, each = fit_line(self._seen)
        each = max(each, 1e-12)
        sizes = [float(config.max_batch_size)]
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
    """Fits seconds = fixed + each * size, neither below zero.

    Weighted by 1/size, since times scatter in proportion to their length; a second fit leaves out the fifth that was
    slowest against the first, which met a garbage collection or another process.
    """
    fixed, each = _least_squares(points)
    if len(points) < _ENOUGH_TO_TRIM:
        return fixed, each
    usual = sorted(points, key=lambda point: point[1] / max(fixed + each * point[0], 1e-12))
    return _least_squares(usual[: len(points) * 4 // 5])


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Points of one size only cannot tell the costs apart; then all is fixed, so that another size comes next."""
    total = sum(1 / size for size, _ in points)
    mean_size = len(points) / total
    mean_seconds = sum(seconds / size for size, seconds in points) / total
    spread = sum((size - mean_size) ** 2 / size for size, _ in points)
    if spread <= 1e-9 * mean_size:
        return mean_seconds, 0.0
    covariance = sum((size - mean_size) * (seconds - mean_seconds) / size for size, seconds in points)
    each = max(0.0, covariance / spread)
    return max(0.0, mean_seconds - each * mean_size), each


def size_controller(config: BatchingConfig) -> SizeController:
    """The controller that a configuration calls for."""
    return FixedSize(config.max_batch_size) if config.fixed_size else AdaptiveSize(config)
