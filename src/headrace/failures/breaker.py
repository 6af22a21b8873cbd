"""A circuit breaker: while everything fails, only a few elements of each failed batch are tried."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple


class Probing(NamedTuple):
    """How many elements of failed batches are tried alone while the breaker is open; depends on what a try costs."""

    at_first: int
    """This many in total since it opened, from as few batches as possible: evidence that the model is dead, rather than
    good elements rare. If one in a hundred were good, a thousand failures would have a probability of 1 in 23,000."""
    later: int
    """After that, this many of each batch."""


CALLS = Probing(1_000, 3)
"""Each costs a call that raises something."""
HOSTS = Probing(32, 3)
"""Each costs a host."""
OUTAGES = Probing(32, 1)
"""Each costs two calls to a server that is failing."""
TIMEOUTS = Probing(3, 1)
"""Each costs the time limit."""

_GOLDEN = 0.6180339887
"""The golden ratio's fraction: the fractional parts of its multiples are spread evenly, however many there are."""


class CircuitBreaker:
    """Opens after ``limit`` consecutive batches without a single success; the first success closes it. Thread-safe.

    While it is closed, every failed batch is searched for bad elements. While it is open, only some elements are
    tried, so that an outage or a broken model does not cost a search of every batch. Once one succeeds, the rest of
    the batch is searched as usual. Error messages do not count: a server that is down may put another number into
    each, and a thousand bad elements may all get the same one.
    """

    def __init__(self, limit: int = 5) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.failed_in_a_row = 0
        self._probed = 0
        """How many elements have been probed since it opened."""

    @property
    def is_open(self) -> bool:
        """Whether failed batches should be probed rather than searched."""
        return self.failed_in_a_row >= self._limit

    def record(self, *, succeeded: bool) -> None:
        """Notes whether any element of a batch, or of a part of one, succeeded."""
        with self._lock:
            self.failed_in_a_row = 0 if succeeded else self.failed_in_a_row + 1
            if succeeded:
                self._probed = 0

    def probes(self, size: int, probing: Probing) -> list[int]:
        """Indices of the elements of a failed batch to try alone, until one succeeds.

        They are spread over the batch, at other indices than in the last one, since good elements may have a fixed
        place in each batch.
        """
        with self._lock:
            count = min(size, max(probing.at_first - self._probed, probing.later))
            first = int(self._probed * _GOLDEN % 1 * size)
            self._probed += count
        return sorted((first + size * number // count) % size for number in range(count))


class ProbeSchedule:
    """When to try a model whose breaker is open, while a fallback answers in its place. Thread-safe.

    Tries begin at most once a second, one at a time, and take at most a tenth of the time: a model that hangs is tried
    less often than one that raises. Pure: the time is a parameter, in seconds.
    """

    _SHORTEST_PAUSE_SECS = 1.0
    _PAUSE = 9
    """How many times as long as a try the pause after it lasts, at least."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = 0.0
        self._due = -math.inf

    def begins(self, now: float) -> bool:
        """Whether the caller is to try the model now; ``ended`` has to follow."""
        with self._lock:
            if now < self._due:
                return False
            self._began, self._due = now, math.inf
            return True

    def ended(self, now: float) -> None:
        """The try is over."""
        with self._lock:
            self._due = now + max(self._SHORTEST_PAUSE_SECS, self._PAUSE * (now - self._began))
