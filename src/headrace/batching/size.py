"""How large a batch should be: a fixed size, or the size that the model's own times call for."""

from __future__ import annotations

import math
import threading
from typing import Protocol

from headrace.batching.times import Times, fit_line, power_of
from headrace.core.config import BatchingConfig


class SizeController(Protocol):
    """Says how large the next batch should be, and learns from those that ran."""

    def target(self) -> int:
        """Size for the next batch."""
        ...

    def most(self) -> float:
        """Size that no batch of several elements should exceed, whatever its minimum: memory, or time, is too short."""
        ...

    def overhead(self) -> float:
        """Size that takes as long as one more batch would, whatever is in it."""
        ...

    def observe(self, size: float, seconds: float | None) -> None:
        """Takes note that the model took ``seconds`` for a batch of ``size``.

        None: more memory than there was. Infinite: longer than it may. Not a number: all went well, but it was not
        alone on the processor.
        """
        ...


class FixedSize:
    """Every batch has the same size, so that a second run forms the same batches."""

    def __init__(self, size: int) -> None:
        self._size = size

    def target(self) -> int:
        """The size."""
        return self._size

    def most(self) -> float:
        """Knows no limit."""
        return math.inf

    def overhead(self) -> float:
        """There are no more batches than need be."""
        return math.inf

    def observe(self, size: float, seconds: float | None) -> None:
        """Learns nothing."""


class AdaptiveSize:
    """Starts at the minimum and goes, at most twofold a step, to the size that the targets of BatchElements ask for.

    With the model's time fitted as t(n) = a + b n, the size is the smallest of: n at which the fixed cost a is only
    ``target_batch_overhead`` of t; n at which b n reaches ``target_batch_duration_secs``; and n at which t reaches
    ``target_batch_duration_secs_including_fixed_cost``. Sizes vary around it by ``variance``, so that a and b remain
    distinguishable. Thread-safe: the bundles of a process learn together.

    What is remembered is the last few batches of each power of two, so that small batches, which tell a, are not
    forgotten among the many large ones. A model need not follow the line, since large batches leave the caches: once
    a larger size has been slower, the line is not followed further, and the fastest known size is taken. Smaller sizes
    are tried now and then until it is known how fast they are, now that the model is warm; that costs little time.

    Source: the documentation of ``apache_beam.BatchElements``.

    Args:
        config: limits and targets.
        timeout_secs: after so long a batch is killed, so that b n is at most half of what a leaves of it: twice as many
            elements would still be in time. Infinite: a batch may take any time.
    """

    _STEP = 2
    _ENOUGH = 3
    """So many batches of a size tell how fast it is."""
    _NEARLY = 0.95
    """A size that reaches this share of a larger one's throughput is as good."""
    _FAR = 0.75
    """Below a size that reaches only this share, none is tried."""
    _TRIAL = 3
    """One batch in so many tries another size, if there is one of which too little is known."""
    _DOUBLE = 30
    """One batch in so many tries twice the size, known or not: what is known may be old."""

    def __init__(self, config: BatchingConfig, timeout_secs: float = math.inf) -> None:
        self._config = config
        self._timeout_secs = timeout_secs
        self._smallest, self._largest = config.adaptive_bounds
        self._lock = threading.Lock()
        self._seen = Times()
        self._typical: dict[int, tuple[float, float]] = {}
        """Of those, one of each power of two."""
        self._fast: dict[int, tuple[float, float]] = {}
        """Of those, one of the faster of each power of two: what else the machine does only makes a batch slower."""
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
            self._typical, self._fast = self._seen.ranked(1 / 2), self._seen.ranked(1 / 4)
            fixed, each = fit_line(list(self._typical.values()))
            self._overhead = fixed / each if each else 0.0  # all times alike: nothing is known of it
            longest = self._longest(fixed, each)
            best = max(1.0, min(self._fastest(fixed, each), longest))
            if best < self._last and not self._is_known(power_of(self._last)) and self._last <= longest:
                best = self._last
            ceiling = min(self._STEP * self._largest_seen, self._largest)
            trial = self._trial(best, longest)
            if trial is not None:
                return max(self._smallest, int(min(trial, ceiling)))
            varied = max(min(self._varied(best), longest), self._last / self._STEP)
            self._last = max(self._smallest, int(min(varied, ceiling)))
            return int(self._last)

    def most(self) -> float:
        """Knows no limit."""
        return math.inf

    def overhead(self) -> float:
        """By the fitted line."""
        return self._overhead

    def observe(self, size: float, seconds: float | None) -> None:
        """Takes note that the model took ``seconds`` for a batch of ``size``; batches without weight tell nothing."""
        if size < 1 or seconds is None or not math.isfinite(seconds):
            return
        with self._lock:
            self._seen.add(size, seconds)
            self._largest_seen = max(self._largest_seen, size)

    def _longest(self, fixed: float, each: float) -> float:
        """The size at which a batch takes as long as it may.

        That is by the line, unless sizes like the last one have shown otherwise: they took longer, or so short that
        even in proportion there is time for more.
        """
        config = self._config
        sizes = [self._largest]
        last = self._typical.get(power_of(self._last)) if self._is_known(power_of(self._last)) else None
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
        """The size at which the fixed cost is the share that it may be, or else the fastest that is known."""
        if not self._config.target_batch_overhead:
            return self._largest
        size = fixed / max(each, 1e-12) * (1 / self._config.target_batch_overhead - 1)
        power = power_of(size)
        known = filter(self._is_known, self._seen)
        rates = {one: self._rate(one) * (1 if one <= power else self._NEARLY) for one in known}
        fastest = max(rates, key=rates.__getitem__, default=power)
        if fastest == power or fastest == max(rates) < power:
            return size
        return self._fast[fastest][0]

    def _trial(self, best: float, longest: float) -> float | None:
        """Another size than the best, to learn how fast it is, if it is time for that."""
        if self._asked % self._TRIAL:
            return None
        now = self._rate(power_of(best))
        for power in range(power_of(best) - 1, 0, -1):
            if not self._is_known(power):
                return self._fast[power][0] if power in self._fast else best / 2
            if self._rate(power) < self._FAR * now:
                break
        is_due = self._asked % self._DOUBLE == 0 or not self._is_known(power_of(2 * best))
        return 2 * best if is_due and 2 * best <= min(longest, self._largest_seen) else None

    def _rate(self, power: int) -> float:
        size, seconds = self._fast.get(power, (0, 1))
        return size / seconds

    def _is_known(self, power: int) -> bool:
        return len(self._seen.get(power, ())) >= self._ENOUGH

    def _varied(self, size: float) -> float:
        """A little above and a little below, in turn; above by one at least."""
        change = self._config.variance * (-0.5, 0.0, 0.5, 0.0)[self._asked % 4]
        return max(size * (1 + change), size + 1) if change > 0 else size * (1 + change)


class MemoryLimitedSize:
    """Another controller's size, as far as memory and the time limit allow.

    A batch that ran out of memory, or was killed because it took too long, is the measure: no further one is larger
    than half of it, or than the largest that has gone well, if that is more. After some batches of about that size a
    larger one is tried, and after twice as many the next time, should that fail. Once a size fails that used to fit,
    all is learnt anew. None is tried of which, by what others took, twice as much would take too long, be it half as
    large as one that did. Thread-safe.

    Args:
        wanted: says how large a batch should be.
        timeout_secs: after so long a batch is killed; infinite: it may take any time.
    """

    _PATIENCE = 8
    _PATIENCE_IN_TIME = 32
    """A batch that takes too long costs the time limit and a model's loading."""
    _MOST_PATIENCE = 1024
    _GROWTH = 1.25
    _ABOUT = 0.75

    def __init__(self, wanted: SizeController, timeout_secs: float = math.inf) -> None:
        self._wanted = wanted
        self._timeout_secs = timeout_secs
        self._times = Times()
        self._lock = threading.Lock()
        self._ceiling = math.inf
        """A whole number, or batches that are as large as may be would not be about as large as this."""
        self._largest_good = 0.0
        """Since a batch first failed."""
        self._half = math.inf
        """Half of the last size that failed."""
        self._first_patience = self._patience = self._PATIENCE
        self._good_in_a_row = 0

    def target(self) -> int:
        """Size for the next batch."""
        wanted = self._wanted.target()
        return wanted if wanted <= self._ceiling else int(self._ceiling)

    def most(self) -> float:
        """What memory and time suffice for, as far as is known."""
        return self._ceiling

    def overhead(self) -> float:
        """As the other one says."""
        return self._wanted.overhead()

    def observe(self, size: float, seconds: float | None) -> None:
        """Takes note of how a batch of ``size`` has gone."""
        self._wanted.observe(size, seconds)
        if size < 1:
            return
        with self._lock:
            if seconds is None or seconds == math.inf:
                self._first_patience = self._PATIENCE if seconds is None else self._PATIENCE_IN_TIME
                self._shrink(size)
                return
            if self._timeout_secs < math.inf and not math.isnan(seconds):
                self._times.add(size, seconds)
            if self._ceiling < math.inf:
                self._grow(size)

    def _shrink(self, size: float) -> None:
        if size > self._ceiling:  # it was formed before a smaller one failed
            return
        if size <= self._largest_good:  # there is less memory than there was, or it takes longer
            self._patience, self._largest_good = self._first_patience, 0.0
        elif self._largest_good:
            self._patience = min(2 * self._patience, self._MOST_PATIENCE)
        self._half = max(1.0, size // 2)
        self._ceiling = max(1.0, math.floor(min(max(self._half, self._largest_good), self._in_time())))
        self._good_in_a_row = 0

    def _grow(self, size: float) -> None:
        if size > self._largest_good:
            self._largest_good, self._patience = size, self._first_patience
        if size < self._ABOUT * self._ceiling:
            return
        self._good_in_a_row += 1
        larger = self._half
        if self._good_in_a_row >= self._patience:
            self._good_in_a_row = 0
            self._times.forget_above(size)  # else nothing larger would be tried because of what one took long ago
            larger = max(self._ceiling + 1, self._ceiling * self._GROWTH)
        self._ceiling = max(self._ceiling, math.floor(min(larger, self._in_time())))

    def _in_time(self) -> float:
        """The size at which twice as much would take as long as the time limit is; infinite: not known."""
        fixed, each = fit_line(list(self._times.ranked(1 / 2).values()) or [(1.0, 0.0)])
        return (self._timeout_secs - fixed) / 2 / each if each else math.inf


def size_controller(config: BatchingConfig, timeout_secs: float | None = None) -> SizeController:
    """The controller that a configuration calls for.

    Args:
        config: limits and targets.
        timeout_secs: after so long a batch is killed; None: it may take any time.
    """
    limit = math.inf if timeout_secs is None else timeout_secs
    return MemoryLimitedSize(
        FixedSize(config.max_batch_size) if config.fixed_size else AdaptiveSize(config, limit), limit
    )
