"""Requests under every order of events that chance finds: none is lost, answered twice, or left without a timer.

Threads take turns at each step that another one could see, and the clock goes on when nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
import sys
from collections import Counter, deque
from contextlib import contextmanager, nullcontext

import pytest

from headrace.batching.batcher import Batch
from headrace.core.errors import EndpointError
from headrace.core.remote import ElementRetry
from headrace.failures.endpoint_board import Board, Memory
from headrace.failures.replies import EndpointRecord
from headrace.runtime.dispatcher import Dispatcher
from headrace.runtime.endpoint_calls import EndpointCall, Inbox, Rules
from virtual_requests import Failed
from virtual_time import EventLoopInTurn, Stuck, Turns


class Submitted(deque):
    def __init__(self, turns):
        super().__init__()
        self.turns = turns

    def append(self, call):
        self.turns.switch()
        super().append(call)
        self.turns.switch()

    def __len__(self):
        self.turns.switch()
        return super().__len__()


class DispatcherInTurn(Dispatcher):
    """Lets other threads run wherever they could see a difference."""

    def __init__(self, event_loop, rules, board):
        self._turns = event_loop.turns
        super().__init__(event_loop, rules, board, EndpointRecord())
        self._submitted = Submitted(self._turns)

    @property
    def _needs_wakeup(self):
        self._turns.switch()
        return self._wakeup

    @_needs_wakeup.setter
    def _needs_wakeup(self, value):
        self._turns.switch()
        self._wakeup = value
        self._turns.switch()


class Scene:
    """Threads that submit requests, some of which they abandon, to an endpoint that does as chance says."""

    def __init__(self, seed):
        random.seed(seed)  # of pauses
        chance = self.chance = random.Random(seed)
        self.turns = Turns(chance)
        self.event_loop = EventLoopInTurn(self.turns)
        self.weights = [chance.choice([0, 1, 5, 50]) for _ in range(7)]
        self.longest_secs = chance.choice([0.0, 0.01, 1.0])
        options = {
            "requests_per_minute": chance.choice([None, None, 60, 6000]),
            "has_fallback": chance.random() < 0.3,
            "max_concurrent": chance.choice([None, None, 1, 3]),
        }
        patience, limit = chance.choice([1.0, 60.0]), chance.choice([None, None, 0.5])
        rules = Rules("H.request", self.send, True, False, None, 2, lambda error: True, patience, limit, **options)
        memory = chance.choice([None, None, Memory()])
        boards = [Board(0.0, memory) for _ in range(1 if memory is None else 2)]
        self.endpoints = [DispatcherInTurn(self.event_loop, rules, board) for board in boards]
        self.submitted = Counter()
        self.inboxes = []

    async def send(self, examples, client):
        chance = self.chance
        await asyncio.sleep(chance.choice([0, chance.random()]) * self.longest_secs)
        kind = chance.choices(range(8), [10, *self.weights])[0]
        failed = Failed({1: 429, 2: 503, 3: 500, 4: 401}.get(kind, 400), chance.choice([0, 0, 0.003, 0.3]))
        if kind == 7:
            return [chance.choice([one, ElementRetry(failed)]) for one in examples]
        if kind == 5:
            raise EndpointError("H", "gone")
        if kind:
            raise failed
        return examples

    def bundle(self, inbox, first):
        """Submits requests now and then, as one bundle does."""
        endpoint = self.chance.choice(self.endpoints)
        for number in range(first, first + self.chance.randrange(1, 15)):
            batch = Batch([2 * number, 2 * number + 1], [0, 1], 2)
            context, prefix = contextvars.copy_context(), self.chance.choice("abc")
            self.submitted.update(batch.elements)
            endpoint.submit(EndpointCall("", batch, None, batch.elements, None, inbox, context, prefix))
            self.turns.sleep(self.chance.choice([0, 0, self.chance.random() * self.longest_secs]))
        if self.chance.random() < 0.2:
            inbox.abandoned = True
            endpoint.cancel_abandoned()

    def play(self):
        """Runs until nothing happens any more."""
        for place in range(self.chance.randrange(1, 5)):
            inbox = Inbox()
            self.inboxes.append(inbox)
            self.turns.start(lambda inbox=inbox, place=place: self.bundle(inbox, 100 * place))
        asyncio.set_event_loop(self.event_loop.loop)
        with pytest.raises(Stuck):
            self.event_loop.loop.run_forever()

    def check(self):
        """Every element came back once; of what was abandoned none is waited for."""
        for place, inbox in enumerate(self.inboxes):
            delivered = Counter()
            while not inbox.empty():
                delivered.update(inbox.get().batch.elements)
            missing = {one for one in self.submitted - delivered if one // 200 == place}
            assert not delivered - self.submitted
            assert inbox.abandoned or not missing
        for endpoint in self.endpoints:
            assert not endpoint._submitted
            assert not endpoint._waiting
            assert not endpoint._calls


class Bug(BaseException):
    """Of Headrace's own."""


@contextmanager
def raising(number):
    """In this thread, the call of this number of a function of Headrace's raises a Bug, but for the guards' own."""
    left = iter(range(number))

    def look(frame, event, _):
        code = frame.f_code
        is_ours = frame.f_globals["__name__"] in MODULES and code.co_name not in GUARDS
        is_plain = not code.co_flags & inspect.CO_GENERATOR  # it may be closed, which ignores what it raises
        if event == "call" and is_ours and is_plain and next(left, None) is None:
            sys.setprofile(None)
            raise Bug(code.co_name)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


GUARDS = {"_enqueue_again", "_guarded", "_hand_over", "_perform"}
MODULES = {
    f"headrace.{name}"
    for name in (
        *("runtime.dispatcher", "runtime.endpoint_calls", "core.event_loop"),
        *("failures.concurrency", "failures.replies", "core.remote", "core.request_context"),
    )
}


@pytest.mark.parametrize("first", range(0, 200, 50))
@pytest.mark.parametrize("raises", [False, True], ids=["sound", "Headrace itself raises"])
def test_requests_all_come_back_once_in_whichever_order_things_happen(first, raises):
    for seed in range(first, first + 50):
        scene = Scene(seed)
        with raising(random.Random(seed).randrange(1500)) if raises else nullcontext():
            scene.play()
        try:
            scene.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            asyncio.set_event_loop(None)
            scene.event_loop.loop.close()
