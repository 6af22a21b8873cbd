"""Looks at fewer of the elements of batches that fail, where everything has been failing for long."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Probing(NamedTuple):
    """How many elements are tried alone, of batches that fail while the breaker is open; by what a try costs."""

    at_first: int
    """So many are, of as few batches as have them: proof that the model is dead, and not the elements rare that are
    good. If one in a hundred is, a thousand that all fail are as likely as 1 in 23,000."""
    later: int
    """Of each batch, once that is proven."""


CALLS = Probing(1_000, 3)
"""Each costs a call that raises something."""
HOSTS = Probing(32, 3)
"""Each costs a host that dies."""
OUTAGES = Probing(32, 1)
"""Each costs two calls to a server that does not answer as it should."""
TIMEOUTS = Probing(3, 1)
"""Each costs the time limit."""

_GOLDEN = 0.6180339887
"""Multiples of it, less the whole numbers, are spread evenly, however many."""


class CircuitBreaker:
    """Open after ``limit`` consecutive batches of which no element succeeded; closed again by the first success.

    While it is closed, every batch that fails is searched. While it is open only some of its elements are tried, since
    an outage or a broken model should not cost a search through every batch: as soon as one succeeds it closes, and
    what is left of the batch is searched like any other. What errors say is not looked at: a server that is down may
    write another number into each, and a thousand bad elements may all get the same. Thread-safe.

    Args:
        limit: how many batches must fail in a row.
    """

    def __init__(self, limit: int = 5) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self._probed = 0
        """Elements, since it opened."""

    @property
    def is_open(self) -> bool:
        """Whether batches that fail should be probed, in place of a search."""
        return self._failed_in_a_row >= self._limit

    def record(self, *, succeeded: bool) -> None:
        """Takes note of a batch, or of a part of one: whether any of its elements succeeded."""
        with self._lock:
            self._failed_in_a_row = 0 if succeeded else self._failed_in_a_row + 1
            if succeeded:
                self._probed = 0

    def probes(self, size: int, probing: Probing) -> list[int]:
        """Which elements of a batch that has failed are to be tried alone, by their places, until one succeeds.

        They are spread over the batch, and over others than in the last one: what is good may have its place there.

        Args:
            size: of the batch, at least 1.
            probing: says how many.
        """
        with self._lock:
            count = min(size, max(probing.at_first - self._probed, probing.later))
            first = int(self._probed * _GOLDEN % 1 * size)
            self._probed += count
        return sorted((first + size * number // count) % size for number in range(count))
