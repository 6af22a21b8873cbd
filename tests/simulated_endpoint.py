"""An endpoint under a clock of its own: requests, refusals and queues as events, many thousands in a second."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_left

from headrace.failures.concurrency import ConcurrencyLimit, Verdict

LATENCY = 0.05
_THERE = 0.0005
"""How long a refusal to connect takes."""


def steps(*changes):
    """A value that changes: (from when, value), ..."""
    return lambda now: next(value for since, value in reversed(changes) if now >= since)


class TokenBucket:
    """Accepts so many requests a second, and as many more as have been left over in ``burst`` seconds."""

    def __init__(self, quota, burst=1.0):
        self._quota, self._burst = quota, burst
        self._tokens, self._at = quota(0.0) * burst, 0.0

    def accepts(self, now):
        quota = self._quota(now)
        self._tokens = min(quota * self._burst, self._tokens + (now - self._at) * quota)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Windows:
    """Accepts so many requests in each second of the clock."""

    def __init__(self, quota):
        self._quota = quota
        self._window, self._used = -1, 0

    def accepts(self, now):
        if int(now) != self._window:
            self._window, self._used = int(now), 0
        self._used += 1
        return self._used <= self._quota(now)


class Simulation:
    """Clients with endless work at one endpoint.

    Args:
        quota: ``accepts(now)``; None: there is none.
        clients: how many.
        latency: of a request that nothing waits for, in seconds; takes a random generator.
        workers: how many requests the endpoint works on at a time; the others queue.
        outage: from when until when nobody listens.
        retry_after: what a refusal asks for, in seconds.
    """

    def __init__(
        self,
        quota=None,
        *,
        clients=1,
        latency=lambda rng: LATENCY,
        workers=0,
        outage=(0, 0),
        retry_after=0.0,
        most=1000,
    ):
        self._rng = random.Random(7)
        self._quota, self._latency, self._outage, self._retry_after = quota, latency, outage, retry_after
        self._free = [0.0] * workers
        self._events, self._numbers = [], itertools.count()
        self.limits = [ConcurrencyLimit(0.0, most=most, jitter=self._rng.random) for _ in range(clients)]
        self._wakes = [math.inf] * clients
        self.accepted, self.refused, self.unheard, self.latencies = [], [], [], []

    def run(self, seconds):
        for client in range(len(self.limits)):
            self._push(0.0, client, None)
        while self._events[0][0] < seconds:
            now, _, client, answer = heapq.heappop(self._events)
            if answer is not None:
                started, reply, retry_after = answer
                self.limits[client].finished(now, started, reply, retry_after=retry_after)
            self._pump(client, now)
        return self

    def rate(self, begin, end):
        """Requests accepted a second, between these times."""
        return (bisect_left(self.accepted, end) - bisect_left(self.accepted, begin)) / (end - begin)

    @property
    def share_refused(self):
        return len(self.refused) / (len(self.accepted) + len(self.refused))

    def _push(self, time, client, answer):
        heapq.heappush(self._events, (time, next(self._numbers), client, answer))

    def _pump(self, client, now):
        limit = self.limits[client]
        while (wait := limit.wait(now)) == 0:
            limit.started(now)
            self._request(client, now)
        wake = now + max(wait, 1e-4)
        if wake < math.inf and not now < self._wakes[client] <= wake:
            self._wakes[client] = wake
            self._push(wake, client, None)

    def _request(self, client, now):
        if self._outage[0] <= now < self._outage[1]:
            self.unheard.append(now)
            self._push(now + _THERE, client, (now, Verdict.UNAVAILABLE, 0.0))
        elif self._quota is not None and not self._quota.accepts(now):
            self.refused.append(now)
            self._push(now + LATENCY, client, (now, Verdict.REFUSED, self._retry_after))
        else:
            end = self._end(now, self._latency(self._rng))
            self.accepted.append(now)
            self.latencies.append(end - now)
            self._push(end, client, (now, Verdict.ANSWERED, 0.0))

    def _end(self, now, seconds):
        if not self._free:
            return now + seconds
        end = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, end)
        return end
