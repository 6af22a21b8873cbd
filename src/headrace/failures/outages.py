"""What an answer says about an endpoint, whether one is down, and how one that answers nothing is probed."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto

from headrace.core.clock import backoff


class Verdict(Enum):
    """What an endpoint's answer to a request says about the endpoint."""

    ANSWERED = auto()
    """It did the work."""
    REFUSED = auto()
    """It has had enough requests for now: HTTP 429."""
    UNAVAILABLE = auto()
    """It does not work: nobody listens, or HTTP 503."""
    FAILED = auto()
    """It may not work, or only this request may: HTTP 500, a lost connection."""
    DECLINED = auto()
    """It has looked at the request, and will not do it: HTTP 400."""
    NOTHING = auto()
    """Nothing: the request was cancelled, or failed for a reason of its own."""


class RefusalBreaker:
    """Stops all requests but a few probes while an endpoint refuses everything or does not work at all.

    An outage is probed once a second. A quota that is used up may be over sooner: those pauses begin with 30 ms and
    double up to a second. A pause lasts as long as the endpoint asks for (Retry-After). The first answer ends it.

    Args:
        jitter: returns random numbers in [0, 1), so that the clients of an endpoint do not return all at once.
    """

    _IN_A_ROW, _WORKS_AGAIN = 5, 3
    """So many unavailable answers in a row begin an outage; so many refusals in a row end it: only a quota is left."""
    _FIRST_SECS = 0.03
    _LONGEST_SECS = 1.0

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self.in_a_row = 0
        """How many requests in a row nobody took."""
        self._pauses = 0
        """How many pauses there have been since it answered."""
        self._refusals = 0
        """How many of the latest were refused."""
        self._paused_at = self._paused_until = 0.0
        self.opened_at: float | None = None
        """Since when the endpoint has answered nothing; None: it answers."""
        self.is_down = False
        """Whether it answers nothing because it does not work, rather than since it refuses all."""

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave."""
        return 0.0 if self.opened_at is None else max(0.0, self._paused_until - now)

    def probed(self, now: float) -> None:
        """A probe has left: the next one waits, even if this one is never answered."""
        self._paused_until = now + self._jittered(self._LONGEST_SECS)

    def answered(self) -> None:
        """The endpoint works, or may work."""
        self.in_a_row, self._pauses, self.opened_at, self.is_down = 0, 0, None, False

    def refused(
        self, now: float, started: float, reply: Verdict, retry_after: float, *, is_known: bool = False
    ) -> bool:
        """Counts a refusal; returns whether a pause begins. The answers to what left before the pause do not count.

        ``is_known``: nothing need be counted, since the endpoint is known to answer nothing.
        """
        self.in_a_row = max(self.in_a_row + 1, self._IN_A_ROW if is_known else 0)
        if self.in_a_row < self._IN_A_ROW or (self.opened_at is not None and started < self._paused_at):
            return False
        self._pauses += 1
        self._refusals = self._refusals + 1 if reply is Verdict.REFUSED else 0
        self.is_down = reply is Verdict.UNAVAILABLE or (self.is_down and self._refusals < self._WORKS_AGAIN)
        secs = self._LONGEST_SECS
        if not self.is_down:
            secs = backoff(self._pauses, self._FIRST_SECS, self._LONGEST_SECS)
        self._paused_at, self._paused_until = now, now + max(retry_after, self._jittered(secs))
        self.opened_at = now if self.opened_at is None else self.opened_at
        return True

    def _jittered(self, secs: float) -> float:
        return secs * (1 + 0.2 * self._jitter())


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
        self._seen = min(self._seen + 1, self._LATELY)
        self._share_before = self._share = self._share * (1 - 1 / self._seen)
        self._failed = self._doubts = self._waited = 0
        self.is_outage, self.began = False, None

    def doubts(self, now: float, waiting: int) -> bool:
        """Whether an outage ends here because it has lasted for so long."""
        if not self.is_outage or now < self._found + self._patience_secs:
            return False
        self._failed, self._waited, self.is_outage = 0, min(waiting, self._MOST_WAITING), False
        self._doubts += 1
        return True

    def failed(self, now: float, in_flight: int) -> None:
        """A request has failed for the first time, while others are in flight."""
        if self.is_outage:
            return  # that it is down says nothing about the share of bad requests
        if not self._doubts:
            self._seen = min(self._seen + 1, self._LATELY)
            self._share += (1 - self._share) / self._seen
        self._failed += 1
        if self._failed >= self._enough(in_flight):
            self.is_outage, self._found = True, now
            self.began = now if self.began is None else self.began

    def _enough(self, in_flight: int) -> int:
        by_chance = math.log(self._CHANCE) / math.log(min(self._share_before, self._LARGEST_SHARE))
        of_those = min(in_flight, self._MOST_IN_FLIGHT) // self._OF_THOSE_IN_FLIGHT
        enough = max(self._FEWEST, math.ceil(by_chance), of_those) << self._doubts
        return max(enough, self._waited)
