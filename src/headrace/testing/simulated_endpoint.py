"""An endpoint under a clock of its own: requests, refusals and queues as events, many thousands in a second."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigurationError
from headrace.failures.concurrency import ConcurrencyLimit
from headrace.failures.endpoint_board import Board, Memory
from headrace.failures.outages import Verdict
from headrace.testing.simulation_plan import SimulatedRun

if TYPE_CHECKING:
    from typing_extensions import Self

LATENCY = 0.05
"""Seconds, by default."""
_MOST = 1000
"""How many requests a client has waiting."""
_REQUESTS, _REQUESTS_EACH = 30_000, 100
"""How many requests are sent one by one, and for each worker more; by then an endpoint's rate has settled."""
_EVENTS = 500_000
"""But with no more events: workers of a machine look at each other often."""
_LONGEST_SECS = 1e8
_NEARLY = 0.8
"""The share of a quota that is used if the quota holds clients back."""

OverTime = Callable[[float], float]
"""A value by the time."""


class TokenBucket:
    """Accepts so many requests a second, and as many more as have been left over in ``burst`` seconds."""

    def __init__(self, quota: OverTime, burst: float = 1.0) -> None:
        self._quota, self._burst = quota, burst
        self._tokens, self._at = quota(0.0) * burst, 0.0

    def accepts(self, now: float) -> bool:
        """Whether a token is left."""
        quota = self._quota(now)
        self._tokens = min(quota * self._burst, self._tokens + (now - self._at) * quota)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class SimulatedEndpoint:
    """An endpoint, and clients with endless work for it, each with its own ``ConcurrencyLimit``.

    Args:
        quota: ``accepts(now)``; None: there is none.
        clients: how many, each on a machine of its own.
        processes: how many clients share a machine, and so a limit.
        latency: of a request that nothing waits for, in seconds; takes a random generator.
        workers: how many requests the endpoint works on at a time; the others queue.
        at_random: which part of the requests it refuses whatever they are, before it counts them.
        seed: of what is random.
        options: those of ``ConcurrencyLimit``.
    """

    def __init__(
        self,
        quota: Any = None,
        *,
        clients: int = 1,
        processes: int = 1,
        latency: Callable[[random.Random], float] = lambda _: LATENCY,
        workers: int = 0,
        at_random: float = 0.0,
        seed: int = 7,
        **options: Any,
    ) -> None:
        self._rng = random.Random(seed)
        self._quota, self._latency, self._at_random = quota, latency, at_random
        self._free = [0.0] * workers
        self._events: list[tuple[float, int, int, Any]] = []
        self._numbers = itertools.count()
        memories = [Memory() if processes > 1 else None for _ in range(clients)]
        self._new: Callable[[int, float], ConcurrencyLimit] = lambda client, now: ConcurrencyLimit(
            now, jitter=self._rng.random, board=Board(now, memories[client // processes]), **{"most": _MOST, **options}
        )
        self.limits: dict[int, ConcurrencyLimit] = {}
        self._wakes = [math.inf] * (clients * processes)
        self._joins: Sequence[float] = [0.0] * (clients * processes)
        """When each client begins."""
        self.accepted: list[float] = []
        self.refused: list[float] = []

    def run(self, seconds: float, requests: float = math.inf, events: float = math.inf) -> Self:
        """Lets time pass, up to so many seconds, requests or events; of these at least until two are accepted."""
        for client, joins in enumerate(self._joins):
            self._push(joins, client, None)
        while self._events[0][0] < seconds and len(self.accepted) + len(self.refused) < requests:
            events -= 1
            if events < 0 and self.accepted and self.accepted[-1] > self.accepted[len(self.accepted) // 2]:
                break
            now, _, client, answer = heapq.heappop(self._events)
            if client not in self.limits:
                self.limits[client] = self._new(client, now)
            if answer is not None:
                started, reply, more = answer
                self.limits[client].finished(now, started, reply, **more)
            self._pump(client, now)
        return self

    def _push(self, time: float, client: int, answer: Any) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), client, answer))

    def _pump(self, client: int, now: float) -> None:
        limit = self.limits[client]
        left, wait = limit.take(now, _MOST)
        for _ in range(left):
            self._request(client, now)
        wake = now + max(wait, 1e-4)
        if wake < math.inf and not now < self._wakes[client] <= wake:
            self._wakes[client] = wake
            self._push(wake, client, None)

    def _request(self, client: int, now: float) -> None:
        if self._refuses(now):
            self.refused.append(now)
            self._push(now + LATENCY, client, (now, Verdict.REFUSED, {}))
        else:
            self.accepted.append(now)
            self._push(self._end(now), client, (now, Verdict.ANSWERED, {}))

    def _refuses(self, now: float) -> bool:
        at_random = self._at_random and self._rng.random() < self._at_random
        return bool(at_random) or (self._quota is not None and not self._quota.accepts(now))

    def _end(self, now: float) -> float:
        seconds = self._latency(self._rng)
        if not self._free:
            return now + seconds
        end = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, end)
        return end


class EndpointShare:
    """What the workers of some machines get out of their part of an endpoint, if they always have requests for it.

    Args:
        plan: has the endpoint.
        name: of the endpoint.
        machines: how many of the plan's are simulated.
    """

    def __init__(self, plan: SimulatedRun, name: str, machines: int) -> None:
        self.name, self.share = name, plan.shares[name]
        service = self._service = plan.endpoints[name]
        self._workers = machines * plan.machines.workers
        part = machines / plan.machines.count
        quota = service.quota_per_second * part
        burst = max(service.burst_seconds, 1 / quota)
        bucket = None if quota == math.inf else TokenBucket(lambda _: quota, burst)
        at_once = service.at_once * part
        side_by_side = math.ceil(at_once)  # which take as much longer as they are too many
        latency = service.latency_seconds * (side_by_side / at_once if at_once else 1.0)
        found = SimulatedEndpoint(
            bucket,
            clients=machines,
            processes=plan.machines.workers,
            latency=lambda _: latency,
            workers=side_by_side,
            at_random=service.refused_at_random,
        ).run(_LONGEST_SECS, requests=_REQUESTS + _REQUESTS_EACH * self._workers, events=_EVENTS)
        self._accepted = found.accepted
        half = len(found.accepted) // 2
        if not found.accepted or found.accepted[-1] == found.accepted[half]:
            raise ConfigurationError(f"endpoints.{name}: next to nothing is accepted; give it fewer refusals.")
        self._refused = len(found.refused) / len(found.accepted)
        self._rate = (len(found.accepted) - 1 - half) / (found.accepted[-1] - found.accepted[half])
        self.phase = "waiting for a quota" if self._rate > _NEARLY * quota else "waiting for an endpoint"

    def answered(self, now: float, rows: int) -> float:
        """In how many seconds a worker that begins with so many rows has their answers."""
        accepted, last = self._accepted, self._accepted[-1]
        before = bisect_left(accepted, now) if now < last else len(accepted) + (now - last) * self._rate
        number = math.ceil(before + rows * self.share * self._workers) - 1
        beyond = number - len(accepted) + 1
        then = accepted[number] if beyond <= 0 else last + beyond / self._rate
        return then - now + self._service.latency_seconds

    def refused(self, requests: int, *, waited: bool) -> int:
        """How many refusals there are before so many requests are answered; ``waited``: whether workers had to wait."""
        at_random = self._service.refused_at_random
        return round(requests * (self._refused if waited else at_random / (1 - at_random)))
