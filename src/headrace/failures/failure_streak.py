"""Whether requests fail because of what is in them, or because their endpoint is down."""

from __future__ import annotations

import math


class FailureStreak:
    """How many requests have failed since the endpoint last answered one.

    A server that is down may answer 500 or cut connections, and so may one that works when a request is bad. A single
    request cannot tell, but several can: the endpoint is down if so many fail in a row that chance would do it less
    than once in a million times, by the share of requests that have failed lately. That is five at first, three after
    150 answers without a failure, thirteen if every third request fails.

    With many in flight, a quarter of them has to fail: what is bad may have come together, and the others tell.

    Each request counts once, for its first failure: those that fail again while the endpoint answers others are bad
    themselves. Pure.
    """

    _CHANCE = 1e-6
    _FEWEST = 3
    _OF_THOSE_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 100
    """A quarter of those in flight, of which no more than this count."""
    _SHARE_AT_FIRST, _REQUESTS_AT_FIRST = 0.06, 20
    """Nothing is known yet: as if of 20 requests, about one had failed."""
    _LATELY = 200
    """Requests."""
    _LARGEST_SHARE = 0.99

    def __init__(self) -> None:
        self._share = self._share_before = self._SHARE_AT_FIRST
        """Of requests that failed: now, and when the endpoint last answered."""
        self._seen = self._REQUESTS_AT_FIRST
        self._failed = 0
        self.is_outage = False
        """Whether the endpoint is down."""

    def answered(self) -> None:
        """A request was answered: if the endpoint was down, it is no longer."""
        self._count(failed=False)
        self._share_before = self._share
        self._failed, self.is_outage = 0, False

    def failed(self, in_flight: int) -> None:
        """A request has failed for the first time.

        Args:
            in_flight: how many others have left and are not over.
        """
        if self.is_outage:
            return  # that it is down says nothing about the share of bad requests
        self._count(failed=True)
        self._failed += 1
        self.is_outage = self._failed >= self._enough(in_flight)

    def _enough(self, in_flight: int) -> int:
        by_chance = math.log(self._CHANCE) / math.log(min(self._share_before, self._LARGEST_SHARE))
        of_those = min(in_flight, self._MOST_IN_FLIGHT) // self._OF_THOSE_IN_FLIGHT
        return max(self._FEWEST, math.ceil(by_chance), of_those)

    def _count(self, *, failed: bool) -> None:
        self._seen = min(self._seen + 1, self._LATELY)
        self._share += (failed - self._share) / self._seen
