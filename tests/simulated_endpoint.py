"""An endpoint under a clock of its own: requests, refusals and queues as events, many thousands in a second."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_left
from collections import deque

from headrace.failures.concurrency import ConcurrencyLimit
from headrace.failures.endpoint_board import Board, Memory
from headrace.failures.outages import Verdict

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
    """Accepts so many requests in each second of the clock, which begin that much earlier than the simulation's."""

    def __init__(self, quota, earlier=0.0):
        self._quota, self._earlier = quota, earlier
        self._window, self._used = -1, 0

    def accepts(self, now):
        if int(now + self._earlier) != self._window:
            self._window, self._used = int(now + self._earlier), 0
        self._used += 1
        return self._used <= self._quota(now)


class SlidingWindow:
    """Accepts a request if fewer have been accepted in the second before it."""

    def __init__(self, quota):
        self._quota, self._accepted = quota, deque()

    def accepts(self, now):
        while self._accepted and self._accepted[0] <= now - 1:
            self._accepted.popleft()
        if len(self._accepted) >= self._quota(now):
            return False
        self._accepted.append(now)
        return True


class Simulation:
    """Clients with endless work at one endpoint.

    Args:
        quota: ``accepts(now)``; None: there is none.
        clients: how many, each on a machine of its own.
        processes: how many clients share a machine, and so a limit.
        joins: when each process begins; by default at once.
        dies: when the last process is killed.
        latency: of a request that nothing waits for, in seconds; takes a random generator.
        workers: how many requests the endpoint works on at a time; the others queue.
        outage: from when until when nobody listens.
        retry_after: what a refusal asks for, in seconds.
        bad: which part of the requests has ``verdict``.
        verdict: what the endpoint says of a bad request.
        at_random: which part of the requests it refuses whatever they are, before it counts them.
        latency_refused: how long a refusal takes, in seconds.
        tokens: what a request takes; takes a random generator.
    """

    def __init__(
        self,
        quota=None,
        *,
        clients=1,
        processes=1,
        joins=(),
        dies=math.inf,
        latency=lambda rng: LATENCY,
        workers=0,
        outage=(0, 0),
        retry_after=0.0,
        bad=0.0,
        verdict=Verdict.DECLINED,
        at_random=0.0,
        latency_refused=None,
        most=1000,
        tokens=lambda rng: 0,
        **options,
    ):
        self._rng = random.Random(7)
        self._quota, self._latency, self._outage, self._retry_after = quota, latency, outage, retry_after
        self._tokens, self._bad, self._verdict, self._at_random = tokens, bad, verdict, at_random
        self._latency_refused = LATENCY if latency_refused is None else latency_refused
        self._free = [0.0] * workers
        self._events, self._numbers = [], itertools.count()
        self._joins = joins or [0.0] * (clients * processes)
        self._dies = dies
        memories = [Memory() if processes > 1 else None for _ in range(clients)]
        self._new = lambda client, now: ConcurrencyLimit(
            now, most=most, jitter=self._rng.random, board=Board(now, memories[client // processes]), **options
        )
        self.limits = [None] * (clients * processes)
        self._wakes = [math.inf] * (clients * processes)
        self.by_client = [0] * (clients * processes)
        self.accepted, self.refused, self.unheard, self.latencies = [], [], [], []

    def run(self, seconds):
        for client in range(len(self.limits)):
            self._push(self._joins[client], client, None)
        while self._events[0][0] < seconds:
            now, _, client, answer = heapq.heappop(self._events)
            if client == len(self.limits) - 1 and now >= self._dies:
                continue
            self.limits[client] = self.limits[client] or self._new(client, now)
            if answer is not None:
                started, reply, retry_after, tokens = answer
                self.limits[client].finished(now, started, reply, retry_after=retry_after, tokens=tokens)
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
        left, wait = limit.take(now, 1000)
        for _ in range(left):
            self._request(client, now)
        wake = now + max(wait, 1e-4)
        if wake < math.inf and not now < self._wakes[client] <= wake:
            self._wakes[client] = wake
            self._push(wake, client, None)

    def _request(self, client, now):
        if self._outage[0] <= now < self._outage[1]:
            self.unheard.append(now)
            self._push(now + _THERE, client, (now, Verdict.UNAVAILABLE, 0.0, 0))
        elif (self._at_random and self._rng.random() < self._at_random) or (
            self._quota is not None and not self._quota.accepts(now)
        ):
            self.refused.append(now)
            self._push(now + self._latency_refused, client, (now, Verdict.REFUSED, self._retry_after, 0))
        else:
            end = self._end(now, self._latency(self._rng))
            self.accepted.append(now)
            self.by_client[client] += 1
            self.latencies.append(end - now)
            verdict = self._verdict if self._bad and self._rng.random() < self._bad else Verdict.ANSWERED
            self._push(end, client, (now, verdict, 0.0, self._tokens(self._rng)))

    def _end(self, now, seconds):
        if not self._free:
            return now + seconds
        end = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, end)
        return end
