"""Simulated endpoints with more trouble than those of plans, and with quotas of other kinds than a bucket's."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

from headrace.failures.outages import Verdict
from headrace.testing import simulated_endpoint
from headrace.testing.simulated_endpoint import LATENCY, OverTime


class SimulatedEndpoint(simulated_endpoint.SimulatedEndpoint):
    """One that is down for a while, answers badly or says how long to wait; and clients that come and go.

    A part ``bad`` of the requests has ``verdict``; a request takes ``tokens``, of a random generator; the last process
    is killed when it ``dies``.
    """

    def __init__(
        self, quota=None, *, joins=(), dies=math.inf, outage=(0, 0), retry_after=0.0, bad=0.0,
        verdict=Verdict.DECLINED, latency_refused=LATENCY, tokens=lambda _: 0, **options,
    ):  # fmt: skip
        super().__init__(quota, **options)
        self._joins = joins or self._joins
        self._dies, self._outage, self._retry_after, self._bad = dies, outage, retry_after, bad
        self._verdict, self._latency_refused, self._tokens = verdict, latency_refused, tokens
        self.by_client = [0] * len(self._joins)
        self.unheard: list[float] = []
        self.latencies: list[float] = []

    def rate(self, begin, end):
        """Requests accepted a second, between these times."""
        return (bisect_left(self.accepted, end) - bisect_left(self.accepted, begin)) / (end - begin)

    @property
    def share_refused(self):
        """Of all requests that it heard."""
        return len(self.refused) / (len(self.accepted) + len(self.refused))

    def _push(self, time, client, answer):
        if client < len(self._joins) - 1 or time < self._dies:
            super()._push(time, client, answer)

    def _request(self, client, now):
        if self._outage[0] <= now < self._outage[1]:
            self.unheard.append(now)
            self._push(now + 0.0005, client, (now, Verdict.UNAVAILABLE, {}))
        elif self._refuses(now):
            self.refused.append(now)
            asks = {"retry_after": self._retry_after}
            self._push(now + self._latency_refused, client, (now, Verdict.REFUSED, asks))
        else:
            end = self._end(now)
            self.accepted.append(now)
            self.by_client[client] += 1
            self.latencies.append(end - now)
            verdict = self._verdict if self._bad and self._rng.random() < self._bad else Verdict.ANSWERED
            self._push(end, client, (now, verdict, {"tokens": self._tokens(self._rng)}))


def steps(*changes: tuple[float, float]) -> OverTime:
    """A value that changes: (from when, value), ..."""
    return lambda now: next(value for since, value in reversed(changes) if now >= since)


class Windows:
    """Accepts so many requests in each second of the clock, which begin that much earlier than the simulation's."""

    def __init__(self, quota: OverTime, earlier: float = 0.0) -> None:
        self._quota, self._earlier = quota, earlier
        self._window, self._used = -1, 0

    def accepts(self, now: float) -> bool:
        """Whether the second has one left."""
        if int(now + self._earlier) != self._window:
            self._window, self._used = int(now + self._earlier), 0
        self._used += 1
        return self._used <= self._quota(now)


class SlidingWindow:
    """Accepts a request if fewer have been accepted in the second before it."""

    def __init__(self, quota: OverTime) -> None:
        self._quota = quota
        self._accepted: deque[float] = deque()

    def accepts(self, now: float) -> bool:
        """Whether the second before has one left."""
        while self._accepted and self._accepted[0] <= now - 1:
            self._accepted.popleft()
        if len(self._accepted) >= self._quota(now):
            return False
        self._accepted.append(now)
        return True
