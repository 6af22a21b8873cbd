"""Requests to endpoints that refuse, fail and queue, in virtual time, beside the loop that one would write by hand."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random

import pytest

from headrace.batching.batcher import Batch
from headrace.core.remote import always_retry
from headrace.failures.endpoint_board import Board
from headrace.runtime.dispatcher import Dispatcher
from headrace.runtime.endpoint_calls import EndpointCall, Inbox, Rules
from virtual_time import EventLoopInTurn, Stuck, Turns

BY_HAND = 8, 32, 128
"""Requests in flight."""


class Failed(Exception):
    def __init__(self, status_code, headers):
        super().__init__(status_code)
        self.status_code, self.headers = status_code, headers


class Endpoint:
    """Answers after ``latency(now)`` seconds, or refuses at once; counts both.

    Args:
        refuses: takes the time and how many requests there were; returns a status, or None: it is answered.
        retry_after: seconds, of the time; None: it does not say.
        workers: how many requests it works on at a time.
        latency: in seconds, of the time and a random generator.
    """

    def __init__(self, refuses=lambda now, n: None, retry_after=lambda now: None, workers=1000, latency=lambda *_: 0.05):
        self.refuses, self.retry_after, self.latency = refuses, retry_after, latency
        self.free = asyncio.Semaphore(workers)
        self.chance = random.Random(7)
        self.count = self.refused = 0

    async def ask(self, examples, _):
        now = asyncio.get_running_loop().time()
        self.count += 1
        if (status := self.refuses(now, self.count)) is not None:
            await asyncio.sleep(0.01)
            self.refused += 1
            after = self.retry_after(now)
            raise Failed(status, {} if after is None else {"retry-after": str(after)})
        async with self.free:
            await asyncio.sleep(self.latency(now, self.chance))
        return examples


def bucket(rate, burst, at_random=0.0):
    """Refuses what is more than ``rate`` a second, and a part of the rest."""
    chance, left, at = random.Random(7), burst, 0.0

    def refuses(now, _):
        nonlocal left, at
        left, at = min(burst, left + (now - at) * rate), now
        if left < 1:
            return 429
        left -= 1
        return 429 if chance.random() < at_random else None

    return refuses


def window(most, secs):
    """Refuses what is more than ``most`` in each ``secs`` of the clock."""
    taken = {}

    def refuses(now, _):
        place = int(now / secs)
        if taken.get(place, 0) >= most:
            return 429
        taken[place] = taken.get(place, 0) + 1
        return None

    return refuses


def between(begin, end, status=429):
    """Refuses all for a while."""
    return lambda now, _: status if begin <= now < end else None


def first(count, status=429):
    """Refuses the first requests."""
    return lambda _, n: status if n <= count else None


def by_chance(share, status):
    """Refuses a part of all requests."""
    chance = random.Random(7)
    return lambda *_: status if chance.random() < share else None


def every(secs):
    """Seconds until the next full ``secs`` of the clock."""
    return lambda now: math.ceil(secs - now % secs)


def virtual():
    random.seed(7)  # of pauses
    return EventLoopInTurn(Turns(random.Random(7)))


def secs_by_hand(endpoint, count, in_flight):
    """As ten lines of one's own do it: a semaphore, what Retry-After says or a back-off, and again."""

    async def ask(place):
        async with semaphore:
            for tries in range(1000):
                try:
                    return await endpoint.ask([place], None)
                except Failed as error:
                    after = error.headers.get("retry-after") or min(20, 0.25 * 2**tries) * random.uniform(0.5, 1)
                    await asyncio.sleep(float(after))

    async def ask_all():
        await asyncio.gather(*map(ask, range(count)))

    semaphore, loop = asyncio.Semaphore(in_flight), virtual().loop
    loop.run_until_complete(ask_all())
    loop.close()
    return loop.time()


class TimedInbox(Inbox):
    """Knows when the last call came, and which have failed."""

    def __init__(self, loop):
        super().__init__()
        self.loop, self.came, self.count, self.failed = loop, 0.0, 0, []

    def put(self, call, **_):
        self.count, self.came = self.count + 1, self.loop.time()
        if call.error is not None:
            self.failed.append(call.error)


def secs_with_dispatcher(endpoint, count):
    event_loop = virtual()
    rules = Rules("H.request", endpoint.ask, True, False, None, 3, always_retry, 60.0, None)
    dispatcher, inbox = Dispatcher(event_loop, rules, Board(0.0)), TimedInbox(event_loop.loop)
    for place in range(count):
        batch = Batch([place], [0], 1)
        dispatcher.submit(EndpointCall("", batch, None, [place], None, inbox, contextvars.copy_context(), ""))
    asyncio.set_event_loop(event_loop.loop)
    with pytest.raises(Stuck):
        event_loop.loop.run_forever()
    event_loop.loop.close()
    assert (inbox.count, inbox.failed) == (count, [])
    return inbox.came


SCENES = {
    "answers all": (3000, {}),
}


def test_print():
    for name, make in ROAD.items():
        count = make[0]
        hand = {n: secs_by_hand(h := Endpoint(**make[1]()), count, n) for n in BY_HAND}
        endpoint = Endpoint(**make[1]())
        try:
            found = secs_with_dispatcher(endpoint, count)
        except AssertionError as error:
            found = math.nan
            print(str(error)[:300])
        print(f"{name:24} {found:7.1f} refused {endpoint.refused:5} ratio {found / min(hand.values()):5.2f}", {k: round(v, 1) for k, v in hand.items()})


ROAD = {
    "all": (3000, dict),
    "first5_ra1": (3000, lambda: {"refuses": first(5), "retry_after": lambda _: 1}),
    "first20_ra1": (3000, lambda: {"refuses": first(20), "retry_after": lambda _: 1}),
    "first9": (3000, lambda: {"refuses": first(9)}),
    "first9_503": (3000, lambda: {"refuses": first(9, 503)}),
    "used_up8": (3000, lambda: {"refuses": between(0, 8)}),
    "used_up8_ra1": (3000, lambda: {"refuses": between(0, 8), "retry_after": lambda _: 1}),
    "used_up30_ra1": (3000, lambda: {"refuses": between(0, 30), "retry_after": lambda _: 1}),
    "used_up30_rest": (3000, lambda: {"refuses": between(0, 30), "retry_after": every(30)}),
    "start503": (3000, lambda: {"refuses": between(0, 8, 503)}),
    "start500": (3000, lambda: {"refuses": between(0, 3, 500)}),
    "mid503": (5000, lambda: {"refuses": between(1, 5, 503)}),
    "mid500": (5000, lambda: {"refuses": between(1, 5, 500)}),
    "mid429": (5000, lambda: {"refuses": between(1, 5)}),
    "mid429_ra1": (5000, lambda: {"refuses": between(1, 5), "retry_after": lambda _: 1}),
    "win600_15_rest": (1800, lambda: {"refuses": window(600, 15), "retry_after": every(15)}),
    "win600_15": (1800, lambda: {"refuses": window(600, 15)}),
    "win600_15_ra1": (1800, lambda: {"refuses": window(600, 15), "retry_after": lambda _: 1}),
    "win600_60": (1800, lambda: {"refuses": window(600, 60)}),
    "win600_60_rest": (1800, lambda: {"refuses": window(600, 60), "retry_after": every(60)}),
    "win10_1": (300, lambda: {"refuses": window(10, 1)}),
    "win100_1": (3000, lambda: {"refuses": window(100, 1)}),
    "bucket1": (100, lambda: {"refuses": bucket(1, 1)}),
    "bucket.2": (20, lambda: {"refuses": bucket(.2, 1)}),
    "bucket1_60": (200, lambda: {"refuses": bucket(1, 60)}),
    "bucket5": (300, lambda: {"refuses": bucket(5, 5)}),
    "bucket50_ra1": (1500, lambda: {"refuses": bucket(50, 50), "retry_after": lambda _: 1}),
    "bucket400": (6000, lambda: {"refuses": bucket(400, 40)}),
    "bucket400_r5": (6000, lambda: {"refuses": bucket(400, 40, .05)}),
    "bucket400_r20": (6000, lambda: {"refuses": bucket(400, 40, .2)}),
    "bucket400_1_r20": (6000, lambda: {"refuses": bucket(400, 400, .2)}),
    "bucket20_slow": (1000, lambda: {"refuses": bucket(20, 20), "latency": lambda *_: 1.0}),
    "bucket20_llm": (1000, lambda: {"refuses": bucket(20, 20), "latency": lambda now, chance: min(20, chance.lognormvariate(-.7, .8))}),
    "bucket2_slow": (200, lambda: {"refuses": bucket(2, 10), "latency": lambda *_: 5.0}),
    "r20": (3000, lambda: {"refuses": by_chance(.2, 429)}),
    "r50": (3000, lambda: {"refuses": by_chance(.5, 429)}),
    "r5_ra1": (3000, lambda: {"refuses": by_chance(.05, 429), "retry_after": lambda _: 1}),
    "e1": (3000, lambda: {"refuses": by_chance(.01, 500)}),
    "e5": (3000, lambda: {"refuses": by_chance(.05, 500)}),
    "e20_503": (3000, lambda: {"refuses": by_chance(.2, 503)}),
    "e2_503": (3000, lambda: {"refuses": by_chance(.02, 503)}),
    "slow_first": (3000, lambda: {"latency": lambda now, _: 5 if now < 5 else .05}),
    "cap1": (300, lambda: {"workers": 1}),
    "cap4": (1000, lambda: {"workers": 4}),
    "cap16": (3000, lambda: {"workers": 16}),
    "cap16_slow": (500, lambda: {"workers": 16, "latency": lambda *_: 1.}),
    "heavy": (1500, lambda: {"latency": lambda now, chance: min(20, chance.lognormvariate(-.7, .8))}),
    "heavy16": (1500, lambda: {"workers": 16, "latency": lambda now, chance: min(20, chance.lognormvariate(-.7, .8))}),
    "slow1": (1000, lambda: {"latency": lambda *_: 1.}),
    "slow10": (1000, lambda: {"latency": lambda *_: 10.}),
    "slowdown": (4000, lambda: {"latency": lambda now, _: .05 if now < 1 else .3}),
    "speedup": (4000, lambda: {"latency": lambda now, _: .5 if now < 3 else .03}),
}
