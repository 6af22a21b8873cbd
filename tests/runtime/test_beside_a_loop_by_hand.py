"""Requests to endpoints that refuse, fail and queue, in virtual time, beside the loop that one would write by hand."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from functools import partial

import pytest

from headrace.testing.simulated_endpoint import TokenBucket
from quotas import Windows, steps
from virtual_requests import Failed, Scene
from virtual_time import Loop, Turns


class Endpoint:
    """Answers after ``latency`` seconds, or refuses at once.

    Args:
        refuses: takes the time; returns a status, or None: it is answered.
        retry_after: seconds, of the time; 0: it does not say.
        workers: how many requests it works on at a time.
        latency: in seconds, of the time and a random generator.
    """

    def __init__(self, refuses, retry_after=lambda _: 0, workers=1000, latency=lambda *_: 0.05):
        self.refuses, self.retry_after, self.latency = refuses, retry_after, latency
        self.free = asyncio.Semaphore(workers)
        self.chance = random.Random(7)

    async def ask(self, examples, _):
        now = asyncio.get_running_loop().time()
        if (status := self.refuses(now)) is not None:
            await asyncio.sleep(0.01)
            raise Failed(status, self.retry_after(now))
        async with self.free:
            await asyncio.sleep(self.latency(now, self.chance))
        return examples


def never():
    return lambda _: None


def between(begin, end, status=429):
    """Refuses all for a while."""
    return lambda now: status if begin <= now < end else None


def by_chance(share, status):
    """Refuses a part of all requests."""
    chance = random.Random(7)
    return lambda _: status if chance.random() < share else None


def quota(kind, each, *, secs=1.0, at_random=0.0, **options):
    """Refuses what is more than ``each`` in so many seconds, and a part of the rest."""
    one, chance = kind(steps((0, each)), **options), random.Random(7)
    return lambda now: None if one.accepts(now / secs) and chance.random() >= at_random else 429


def every(secs):
    """Seconds until the next full ``secs`` of the clock."""
    return lambda now: math.ceil(secs - now % secs)


def secs_by_hand(endpoint, times, in_flight):
    """As ten lines of one's own do it: a semaphore, what Retry-After says or a back-off, and again."""

    async def ask(place, begins):
        await asyncio.sleep(begins)
        async with semaphore:
            for tries in itertools.count():
                try:
                    await endpoint.ask([place], None)
                    break
                except Failed as error:
                    after = error.retry_after or min(20, 0.25 * 2**tries) * random.uniform(0.5, 1)
                    await asyncio.sleep(after)

    async def ask_all():
        await asyncio.gather(*map(ask, itertools.count(), times))

    semaphore, loop = asyncio.Semaphore(in_flight), Loop(Turns(random.Random(7)))
    loop.run_until_complete(ask_all())
    loop.close()
    return loop.time()


class SceneAt(Scene):
    """Sends requests to an ``Endpoint``."""

    def __init__(self, endpoint):
        super().__init__(None)
        self.endpoint = endpoint

    async def _send(self, examples, client):
        return await self.endpoint.ask(examples, client)


def llm(_, chance):
    """Seconds, by the length of the answer."""
    return min(20, chance.lognormvariate(-0.7, 0.8))


def slower(by):
    """An endpoint that is slower after a second."""
    return lambda now, _: 0.05 if now < 1 else 0.05 * by


small_bucket = partial(quota, TokenBucket, 400, burst=0.1)
QUOTAS = {
    "used up by others for 8 s": (1500, partial(between, 0, 8), {}),
    "used up for 8 s, asks for 1 s": (1500, partial(between, 0, 8), {"retry_after": lambda _: 1}),
    "used up for 30 s, says so": (1500, partial(between, 0, 30), {"retry_after": every(30)}),
    "600 a minute": (1500, partial(quota, Windows, 600, secs=60), {}),
    "600 a minute, says when": (1500, partial(quota, Windows, 600, secs=60), {"retry_after": every(60)}),
    "10 a second of the clock": (200, partial(quota, Windows, 10), {}),
    "100 a second of the clock": (1500, partial(quota, Windows, 100), {}),
    "1 a second": (50, partial(quota, TokenBucket, 1), {}),
    "5 a second": (200, partial(quota, TokenBucket, 5), {}),
    "400 a second": (3000, small_bucket, {}),
    "400 a second, 5 % by chance": (4000, partial(small_bucket, at_random=0.05), {}),
    "20 a second, answers of all lengths": (600, partial(quota, TokenBucket, 20), {"latency": llm}),
}
TROUBLE = {
    "starts in 8 s": (1500, partial(between, 0, 8, 503), {}),
    "restarts": (3000, partial(between, 1, 5, 503), {}),
    "fails for 4 s": (3000, partial(between, 1, 5, 500), {}),
    "2 % unavailable by chance": (1500, partial(by_chance, 0.02, 503), {}),
    "answers all": (1500, never, {}),
    "loads its model first": (1500, never, {"latency": lambda now, _: 5 if now < 5 else 0.05}),
    "one worker": (200, never, {"workers": 1}),
    "16 workers": (1500, never, {"workers": 16}),
    "16 workers, answers of all lengths": (1500, never, {"workers": 16, "latency": llm}),
    "slower by 2.5": (3000, never, {"latency": slower(2.5)}),
    "slower by 10": (4000, never, {"latency": slower(10)}),
    "slower and slower": (6000, never, {"latency": lambda now, _: 0.05 * (1 + now / 5)}),
    "faster": (3000, never, {"latency": lambda now, _: 0.5 if now < 3 else 0.03}),
}
ROAD = {
    **{name: (*scene, 0, 32, 1.25) for name, scene in QUOTAS.items()},
    **{name: (*scene, 0, 128, 1.25) for name, scene in TROUBLE.items()},
    "5 % fail by chance": (1500, partial(by_chance, 0.05, 500), {}, 0, 128, 6),
    "used up during idle time": (1500, partial(between, 10, 18), {}, 12, 32, 1.25),
    "400 a second, 20 % by chance": (4000, partial(small_bucket, at_random=0.2), {}, 0, 32, 2.5),
    "20 % by chance": (1500, partial(by_chance, 0.2, 429), {}, 0, 128, 8),
}
"""How many requests; what refuses some; the endpoint's options; seconds without requests after the first hundredth of
them; how many the loop by hand has in flight; and how many times its time is enough, with a second more."""


@pytest.mark.parametrize("name", ROAD)
def test_loop_by_hand_is_not_faster(name):
    count, refuses, options, idle, in_flight, most = ROAD[name]
    times = [idle if place >= count / 100 else 0 for place in range(count)]
    random.seed(7)  # of pauses
    by_hand = secs_by_hand(Endpoint(refuses(), **options), times, in_flight)
    found = SceneAt(Endpoint(refuses(), **options)).play_at(times)
    assert not found.failed
    assert found.secs <= most * by_hand + 1
