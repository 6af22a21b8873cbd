"""How many requests to an endpoint may be in flight, and how fast they may follow each other, found by feedback."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from headrace.failures.latency import LatencyLimit


class Verdict(Enum):
    """What an endpoint's answer to a request says about the endpoint."""

    ANSWERED = auto()
    """It did the work."""
    REFUSED = auto()
    """It has had enough requests for now: HTTP 429."""
    UNAVAILABLE = auto()
    """It does not work: nobody listens, or HTTP 503."""
    NOTHING = auto()
    """Nothing: the request was cancelled, or failed for a reason of its own."""


class QuotaRate:
    """How many requests a second to send to an endpoint that refuses some.

    Unlimited until the first refusal. Then the rate at which the endpoint has lately accepted requests is the estimate
    ``q`` of its quota, and ``t`` seconds later the rate is ``q * (0.97 + exp((t - 4) / 0.8))``: 2 % below the quota at
    once, 5 % above it after two seconds, four times as much after five, until the next refusal. Where requests are
    rare, the unit is not a second but the time of 20 of them.
    """

    _BELOW = 0.03
    _PROBING = 4.0, 0.8
    """When probing reaches twice the quota, and in which time it grows by a factor of e, in units."""
    _LARGEST_CUT = 0.5
    _UNIT = 20
    """How many requests have to fit into the unit of time."""
    _LAG_SECS = 0.02
    """How far sending may be behind its schedule and still catch up."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._quota = math.inf
        self._cut_at = self._known_since = -math.inf
        self._accepts = True
        """Whether anything has been accepted since ``_known_since``."""
        self._accepted: deque[float] = deque()
        self._next = now

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave."""
        return max(0.0, self._next - now)

    def started(self, now: float) -> None:
        """A request has left."""
        rate = self._rate(now)
        if math.isfinite(rate):
            self._next = max(self._next, now - max(self._LAG_SECS, 1 / rate)) + 1 / rate

    def answered(self, now: float) -> None:
        """A request was accepted."""
        self._accepted.append(now)
        self._accepts = True
        while self._accepted[0] < now - self._unit():
            self._accepted.popleft()

    def refused(self, now: float, started: float) -> None:
        """A request that left at ``started`` was refused; one that left before the last cut teaches nothing new."""
        if started < self._known_since or not self._accepts:
            return
        rate, measured = self._rate(now), self._measured(now)
        self._quota = measured if math.isinf(rate) else min(rate, max(measured, self._LARGEST_CUT * rate))
        self._cut_at = self._next = now
        self.hold(now)

    def hold(self, now: float) -> None:
        """Refusals of what has left so far teach nothing new, nor do others while nothing is accepted at all."""
        self._known_since, self._accepts = now, False

    def _unit(self) -> float:
        """Seconds over which to measure and to grow."""
        return max(1.0, self._UNIT / self._quota)

    def _rate(self, now: float) -> float:
        if math.isinf(self._quota):
            return self._quota
        twice, growth = self._PROBING
        since = min((now - self._cut_at) / self._unit(), 2 * twice)
        probing = self._quota * (1 - self._BELOW + math.exp((since - twice) / growth))
        return min(probing, max(self._quota, 2 * self._measured(now)))

    def _measured(self, now: float) -> float:
        """Requests accepted a second, lately: since the last cut, or in the later half of all time if that is short."""
        since = max(self._cut_at, now - self._unit(), (self._began + now) / 2)
        count = len(self._accepted) - bisect_left(self._accepted, since)
        return max(1, count) / max(0.02, now - since)


class RefusalBreaker:
    """Stops all requests but a few probes while an endpoint refuses everything or does not work at all.

    An outage is probed once a second. A quota that is used up may be over sooner: those pauses begin with 30 ms and
    double up to a second. A pause lasts as long as the endpoint asks for (Retry-After). The first answer ends it.

    Args:
        jitter: returns random numbers in [0, 1), so that the clients of an endpoint do not return all at once.
    """

    _IN_A_ROW = 5
    _FIRST_SECS = 0.03
    _LONGEST_SECS = 1.0

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._refusals = 0
        self._pauses = 0
        self._began = -math.inf
        """When the current pause began."""
        self._until = -math.inf
        self.opened: float | None = None
        """Since when the endpoint has answered nothing; None: it answers."""

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave."""
        return 0.0 if self.opened is None else max(0.0, self._until - now)

    def started(self, now: float) -> None:
        """A request has left; if it is a probe, the next one waits, even if this one is never answered."""
        if self.opened is not None:
            self._until = now + self._jittered(self._LONGEST_SECS)

    def answered(self) -> None:
        """The endpoint works."""
        self._refusals = self._pauses = 0
        self.opened = None

    def refused(self, now: float, started: float, reply: Verdict, retry_after: float) -> bool:
        """Counts a refusal; returns whether a pause begins. The answers to what left before the pause do not count."""
        self._refusals += 1
        if self._refusals < self._IN_A_ROW or (self.opened is not None and started < self._began):
            return False
        secs = min(self._FIRST_SECS * 2**self._pauses, self._LONGEST_SECS)
        if reply is Verdict.UNAVAILABLE:
            secs = self._LONGEST_SECS
        self._pauses += 1
        self._began, self._until = now, now + max(retry_after, self._jittered(secs))
        self.opened = now if self.opened is None else self.opened
        return True

    def _jittered(self, secs: float) -> float:
        return secs * (1 + 0.2 * self._jitter())


class ConcurrencyLimit:
    """When the next request to an endpoint may leave. Pure: the time is a parameter, in seconds. Not thread-safe.

    ::

        LatencyLimit     how many in flight    from latencies
        QuotaRate        how many a second     from refusals
        RefusalBreaker   nothing but probes    while all are refused

    Args:
        now: the time.
        most: at most this many are ever in flight.
        jitter: returns random numbers in [0, 1).
    """

    def __init__(self, now: float, *, most: int = 1000, jitter: Callable[[], float] = random.random) -> None:
        self._latency = LatencyLimit(most)
        self._quota = QuotaRate(now)
        self._breaker = RefusalBreaker(jitter)
        self._restarted = -math.inf
        self.in_flight = 0
        """How many requests are in flight, but for those that left before the last outage and may never end."""

    @property
    def limit(self) -> int:
        """How many requests may be in flight."""
        return int(self._latency.value)

    @property
    def outage_began(self) -> float | None:
        """Since when the endpoint has answered nothing; None: it answers."""
        return self._breaker.opened

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave; infinite: not before another one is finished."""
        if self._breaker.opened is not None:
            return self._breaker.wait(now)
        return math.inf if self.in_flight >= self.limit else self._quota.wait(now)

    def is_throttled(self, now: float) -> bool:
        """Whether a request would have to wait because the endpoint refuses some, not because many are in flight."""
        return max(self._breaker.wait(now), self._quota.wait(now)) > 0

    def started(self, now: float) -> None:
        """A request has left."""
        self.in_flight += 1
        self._latency.started(now, self.in_flight)
        self._quota.started(now)
        self._breaker.started(now)

    def finished(self, now: float, started: float, reply: Verdict, *, retry_after: float = 0.0, size: int = 1) -> None:
        """A request is over.

        Args:
            now: the time.
            started: when it left.
            reply: what its answer says about the endpoint.
            retry_after: how long the endpoint asked to wait, in seconds; 0: it did not.
            size: the number of elements in the request.
        """
        self._latency.finished(now, started, size, answered=reply is Verdict.ANSWERED)
        if reply is Verdict.ANSWERED:
            self._quota.answered(now)
            self._breaker.answered()
        elif reply is not Verdict.NOTHING:
            self._refused(now, started, reply, retry_after)
        if started > self._restarted:
            self.in_flight -= 1

    def _refused(self, now: float, started: float, reply: Verdict, retry_after: float) -> None:
        if reply is Verdict.REFUSED:
            self._quota.refused(now, started)
        if not self._breaker.refused(now, started, reply, retry_after):
            return
        self._quota.hold(now)
        if reply is Verdict.UNAVAILABLE:
            self._latency.restart(now)
            self._restarted, self.in_flight = now, 0
