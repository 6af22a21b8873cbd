"""How large a batch should be: a fixed size, or one learned from the model's times."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import combinations
from statistics import median, median_low
from typing import TypeAlias

from headrace.core.config import BatchingConfig

_REMEMBERED = 15
"""Enough that most periods in which other programs slow the machine down are shorter."""


class Untimed(Enum):
    """Why there is no time to learn from."""

    OUT_OF_MEMORY = "the batch failed for lack of memory"
    OVERRAN = "the batch exceeded the time limit"
    NOT_ALONE = "the batch succeeded, but shared the processor with other work"


BatchTime: TypeAlias = float | Untimed
"""Seconds that the model took for a batch; or why they are not known."""


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits seconds = fixed + each * size, with both at least zero, robust against a few points that are far too high.

    The slope is the median of the slopes between any two points (Theil, 1950; Sen, 1968): a batch that met a garbage
    collection, or a model's slow first call, does not move it. A single point cannot separate the two costs; then all
    is fixed cost, so that another size is tried next.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    each = max(0.0, median_low(slopes)) if slopes else 0.0
    return max(0.0, median(seconds - each * size for size, seconds in points)), each


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


def size_class(size: float) -> int:
    """Class of sizes between two powers of two: 1 for size 1, 2 for 2 and 3, 3 for 4 to 7; 0 below 1."""
    return int(min(size, 2**62)).bit_length()


class SizeController:
    """Determines the size of the next batch: a fixed one, so that each run forms the same batches. Thread-safe."""

    learns = False
    """Whether the times of batches change the size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def target(self) -> int:
        """Size for the next batch."""
        return self._size

    def max_size(self) -> float:
        """Size that no batch of several elements should exceed, even below its minimum, for lack of memory or time."""
        return math.inf

    def overhead(self) -> float:
        """Size that takes as long as the fixed cost of one more batch; infinite: padding never justifies another."""
        return math.inf

    def knows(self, size: float) -> bool:
        """Whether it needs no more times of batches of about this size, so that they may run beside other work."""
        return True

    def observe(self, size: float, time: BatchTime) -> None:
        """Notes how long the model took for a batch of ``size``."""


class AdaptiveSize(SizeController):
    """Starts at the minimum and at most doubles in each step, up to the size that BatchElements' targets call for.

    With the model's time fitted as t(n) = a + b n, the size is the smallest of: n at which the fixed cost a is only
    ``target_batch_overhead`` of t; n at which b n reaches ``target_batch_duration_secs``; and n at which t reaches
    ``target_batch_duration_secs_including_fixed_cost``. Sizes vary around it by ``variance``, so that a and b remain
    distinguishable. Thread-safe: the bundles of a process learn together.

    It remembers the last few batches of each power of two, so that the many large batches do not displace the small
    ones, which determine a. A model may deviate from the line, since large batches do not fit into CPU caches: once a
    larger size was slower, the fastest known size is used instead. Smaller sizes are tried occasionally, at little
    cost, until their speed with a warm model is known.

    Source: the documentation of ``apache_beam.BatchElements``.

    Args:
        timeout_secs: time limit of a batch, in seconds; infinite: none. b n is at most half of what a leaves of it, so
            that even twice as many elements would be in time.
    """

    _STEP = 2
    _ENOUGH = 3
    """How many batches of a size make its speed known."""
    _NEARLY = 0.95
    """A size with this part of a larger one's throughput is considered as good."""
    _FAR = 0.75
    """If a size has less than this part of the best size's throughput, smaller ones are not tried."""
    _TRIAL = 3
    """One batch in this many tries another size, if there is one whose speed is not known."""
    _DOUBLE = 30
    """One batch in this many tries twice the size even if its speed is known, since that may be outdated."""

    learns = True

    def __init__(self, config: BatchingConfig, timeout_secs: float = math.inf) -> None:
        self._config = config
        self._timeout_secs = timeout_secs
        self._smallest, self._largest = config.adaptive_bounds
        self._lock = threading.Lock()
        self._seen = BatchTimes()
        self._largest_seen = 0.0
        self._last: float = self._smallest
        self._overhead = 0.0
        self._asked = 0

    def target(self) -> int:
        """Size for the next batch."""
        with self._lock:
            if not self._seen:
                return self._smallest
            self._asked += 1
            fixed, each = fit_line(list(self._seen.typical.values()))
            self._overhead = fixed / each if each else 0.0  # with equal times the overhead is unknown
            longest = self._longest(fixed, each)
            best = max(1.0, min(self._fastest(fixed, each), longest))
            if best < self._last and not self._is_known(size_class(self._last)) and self._last <= longest:
                best = self._last
            ceiling = min(self._STEP * self._largest_seen, self._largest)
            trial = self._trial(best, longest)
            if trial is not None:
                return max(self._smallest, int(min(trial, ceiling)))
            varied = max(min(self._varied(best), longest), self._last / self._STEP)
            self._last = max(self._smallest, int(min(varied, ceiling)))
            return int(self._last)

    def overhead(self) -> float:
        """Fixed cost divided by cost per element, from the fitted line."""
        return self._overhead

    def knows(self, size: float) -> bool:
        """Whether enough batches of about this size were timed; those without weight never are."""
        return size < 1 or self._is_known(size_class(size))

    def observe(self, size: float, time: BatchTime) -> None:
        """Notes a batch's time, if it has one; ignores batches without weight."""
        if size < 1 or isinstance(time, Untimed):
            return
        with self._lock:
            self._seen.add(size, time)
            self._largest_seen = max(self._largest_seen, size)

    def _longest(self, fixed: float, each: float) -> float:
        """The size at which a batch takes the longest time that it may.

        By the fitted line, unless batches of about the last size contradict it: they took longer, or so little time
        that even in proportion more elements fit.
        """
        config = self._config
        sizes = [self._largest]
        last = self._seen.typical.get(size_class(self._last)) if self._is_known(size_class(self._last)) else None
        for limit, spent in (
            (config.target_batch_duration_secs, 0.0),
            (config.target_batch_duration_secs_including_fixed_cost, fixed),
            (fixed + max(0.0, self._timeout_secs - fixed) / 2, fixed),
        ):
            if limit and limit < math.inf:
                size = (limit - spent) / max(each, 1e-12)
                if last is not None:
                    bound = max if last[1] + spent - fixed <= limit else min
                    size = bound(size, last[0] * limit / last[1])
                sizes.append(size)
        return max(1.0, min(sizes))

    def _fastest(self, fixed: float, each: float) -> float:
        """The size at which the fixed cost meets its target; the fastest known size if times deviate from the line."""
        if not self._config.target_batch_overhead:
            return self._largest
        size = fixed / max(each, 1e-12) * (1 / self._config.target_batch_overhead - 1)
        power = size_class(size)
        known = filter(self._is_known, self._seen)
        rates = {one: self._rate(one) * (1 if one <= power else self._NEARLY) for one in known}
        fastest = max(rates, key=rates.__getitem__, default=power)
        if fastest == power or fastest == max(rates) < power:
            return size
        return self._seen.fast[fastest][0]

    def _trial(self, best: float, longest: float) -> float | None:
        """A size other than the best, to learn its speed, if it is time for a trial."""
        if self._asked % self._TRIAL:
            return None
        now = self._rate(size_class(best))
        for power in range(size_class(best) - 1, 0, -1):
            if not self._is_known(power):
                return self._seen.fast[power][0] if power in self._seen.fast else best / 2
            if self._rate(power) < self._FAR * now:
                break
        is_due = self._asked % self._DOUBLE == 0 or not self._is_known(size_class(2 * best))
        return 2 * best if is_due and 2 * best <= min(longest, self._largest_seen) else None

    def _rate(self, power: int) -> float:
        size, seconds = self._seen.fast.get(power, (0, 1))
        return size / seconds

    def _is_known(self, power: int) -> bool:
        return len(self._seen.get(power, ())) >= self._ENOUGH

    def _varied(self, size: float) -> float:
        """The size, varied up and down in turn; upwards by at least one."""
        change = self._config.variance * (-0.5, 0.0, 0.5, 0.0)[self._asked % 4]
        return max(size * (1 + change), size + 1) if change > 0 else size * (1 + change)


class MemoryLimitedSize(SizeController):
    """Another controller's size, as far as memory and the time limit allow. Thread-safe.

    After a batch that ran out of memory, or was killed at the time limit, no batch is larger than half of it, or than
    the largest that succeeded if that is more. After some batches of about that size a larger one is tried; if it
    fails, twice as many precede the next attempt. If a size fails that used to succeed, learning starts again.
    """

    _PATIENCE = 8
    """How many batches of about the largest size precede an attempt with a larger one."""
    _PATIENCE_IN_TIME = 32
    """The same after a timeout, which costs the time limit and a load of the model."""
    _MOST_PATIENCE = 1024
    _GROWTH = 1.15
    _ABOUT = 0.75

    def __init__(self, wanted: SizeController) -> None:
        self._wanted = wanted
        self.learns = wanted.learns
        self._lock = threading.Lock()
        self._ceiling = math.inf
        """The largest size allowed; a whole number, so that batches can reach it."""
        self._largest_good = 0.0
        """The largest size that has succeeded since a batch first failed."""
        self._first_patience = self._patience = self._PATIENCE
        self._good_in_a_row = 0

    def target(self) -> int:
        """Size for the next batch."""
        wanted = self._wanted.target()
        return wanted if wanted <= self._ceiling else int(self._ceiling)

    def max_size(self) -> float:
        """The largest size that memory and the time limit are known to allow."""
        return self._ceiling

    def overhead(self) -> float:
        """The wanted controller's overhead."""
        return self._wanted.overhead()

    def knows(self, size: float) -> bool:
        """As the wanted controller."""
        return self._wanted.knows(size)

    def observe(self, size: float, time: BatchTime) -> None:
        """Notes how a batch of ``size`` went, and adapts the limit."""
        if self.learns:
            self._wanted.observe(size, time)
        if size < 1:
            return
        with self._lock:
            if time in (Untimed.OUT_OF_MEMORY, Untimed.OVERRAN):
                self._first_patience = self._PATIENCE if time is Untimed.OUT_OF_MEMORY else self._PATIENCE_IN_TIME
                self._shrink(size)
                return
            if self._ceiling < math.inf:
                self._grow(size)

    def _shrink(self, size: float) -> None:
        if size > self._ceiling:  # formed before a smaller batch failed
            return
        if size <= self._largest_good:  # less memory than before, or the model has become slower
            self._patience, self._largest_good = self._first_patience, 0.0
        elif self._largest_good:
            self._patience = min(2 * self._patience, self._MOST_PATIENCE)
        self._ceiling = max(1.0, size // 2, self._largest_good)
        self._good_in_a_row = 0

    def _grow(self, size: float) -> None:
        if size > self._largest_good:
            self._largest_good, self._patience = size, self._first_patience
        if size < self._ABOUT * self._ceiling:
            return
        self._good_in_a_row += 1
        if self._good_in_a_row >= self._patience:
            self._good_in_a_row = 0
            self._ceiling = math.floor(max(self._ceiling + 1, self._ceiling * self._GROWTH))


def size_controller(config: BatchingConfig, timeout_secs: float | None = None) -> SizeController:
    """The controller that a configuration calls for."""
    limit = math.inf if timeout_secs is None else timeout_secs
    adaptive = None if config.fixed_size else AdaptiveSize(config, limit)
    return MemoryLimitedSize(adaptive or SizeController(config.max_batch_size))
