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
    themselves.

    An outage that lasts for nearly all of the patience may be none: bad requests may have come by the thousand. Then
    what waits (up to a hundred) is tried before it is given up, and failures are the requests' own, until twice as many
    have failed, four times as many after that, and so on. That limits both what a long outage costs and how long bad
    requests hold up others. Pure.

    Args:
        patience_secs: how long requests wait for an endpoint that is down.
    """

    _CHANCE = 1e-6
    _FEWEST = 3
    _OF_THOSE_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 100
    """A quarter of those in flight, of which no more than this count."""
    _SHARE_AT_FIRST, _REQUESTS_AT_FIRST = 0.06, 20
    """Nothing is known yet: as if of 20 requests, about one had failed."""
    _MOST_WAITING = 100
    _LATELY = 200
    """Requests."""
    _LARGEST_SHARE = 0.99
    _OF_THE_PATIENCE = 0.9
    """Less than all of it, so that those that have waited are tried before they are given up."""

    def __init__(self, patience_secs: float = math.inf) -> None:
        self._patience_secs = patience_secs * self._OF_THE_PATIENCE
        self._share = self._share_before = self._SHARE_AT_FIRST
        """Of requests that failed: now, and when the endpoint last answered."""
        self._seen = self._REQUESTS_AT_FIRST
        self._failed = 0
        self._found = 0.0
        """When the current outage was found."""
        self._doubts, self._waited = 0, 0
        """How often in a row an outage has lasted for too long, and how many requests waited then."""
        self.is_outage = False
        """Whether the endpoint is down."""
        self.began: float | None = None
        """When the endpoint was found to be down for the first time since it last answered."""

    def answered(self) -> None:
        """A request was answered: if the endpoint was down, it is no longer."""
        self._count(failed=False)
        self._share_before = self._share
        self._failed = self._doubts = self._waited = 0
        self.is_outage, self.began = False, None

    def doubts(self, now: float, waiting: int) -> bool:
        """Whether an outage ends here because it has lasted for so long.

        Args:
            now: the time in seconds.
            waiting: how many requests wait.
        """
        if not self.is_outage or now < self._found + self._patience_secs:
            return False
        self._failed, self._waited, self.is_outage = 0, min(waiting, self._MOST_WAITING), False
        self._doubts += 1
        return True

    def failed(self, now: float, in_flight: int) -> None:
        """A request has failed for the first time.

        Args:
            now: the time in seconds.
            in_flight: how many others have left and are not over.
        """
        if self.is_outage:
            return  # that it is down says nothing about the share of bad requests
        if not self._doubts:
            self._count(failed=True)
        self._failed += 1
        if self._failed >= self._enough(in_flight):
            self.is_outage, self._found = True, now
            self.began = now if self.began is None else self.began

    def _enough(self, in_flight: int) -> int:
        by_chance = math.log(self._CHANCE) / math.log(min(self._share_before, self._LARGEST_SHARE))
        of_those = min(in_flight, self._MOST_IN_FLIGHT) // self._OF_THOSE_IN_FLIGHT
        enough = max(self._FEWEST, math.ceil(by_chance), of_those) << self._doubts
        return max(enough, self._waited)

    def _count(self, *, failed: bool) -> None:
        self._seen = min(self._seen + 1, self._LATELY)
        self._share += (failed - self._share) / self._seen
