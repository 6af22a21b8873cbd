"""Requests to an endpoint through a dispatcher, under a clock of their own."""

from __future__ import annotations

import asyncio
import contextvars
import random
from itertools import islice

import pytest

from headrace.batching.batcher import Batch
from headrace.failures.endpoint_board import Board
from headrace.failures.replies import EndpointRecord
from headrace.runtime.dispatcher import Dispatcher
from headrace.runtime.endpoint_calls import EndpointCall, Inbox, Rules
from virtual_time import EventLoopInTurn, Stuck, Turns

LATENCY = 0.05
EACH = 0.02
"""After which time the next element comes."""


class Failed(Exception):
    """As clients raise it."""

    def __init__(self, status, retry_after=0):
        super().__init__(f"status {status}")
        self.status_code = status
        self.retry_after = retry_after


class Scene:
    """What becomes of requests that are submitted one after another.

    Args:
        error: from an element, the time and how many requests came before to the error of a request, or None.
        limit: how many requests the machine's other processes have found out that the endpoint takes.
        options: of ``Rules``.
    """

    def __init__(self, error, *, num_retries=5, patience=45.0, limit=1.0, **options):
        random.seed(0)  # of pauses
        self.error = error
        self.sent = []
        """When, and which element."""
        self.ended = {}
        """When each element's request was over, and how."""
        self._underway = 0
        self._event_loop = EventLoopInTurn(Turns(random.Random(0)))
        how = (None, num_retries, lambda _: True, patience, None)
        rules, board = Rules("H.request", self._send, True, False, *how, **options), Board(0.0)
        board.state.limit = limit
        self._endpoint = Dispatcher(self._event_loop, rules, board, EndpointRecord())

    async def _send(self, examples, client):
        (element,), now, before = examples, self._event_loop.loop.time(), len(self.sent)
        self.sent.append((now, element))
        await asyncio.sleep(LATENCY)
        if (error := self.error(element, now, before)) is not None:
            raise error
        return examples

    def play(self, count, secs=EACH):
        """Submits an element now and then, until all are over."""
        return self.play_at([element * secs for element in range(count)])

    def play_at(self, times):
        """Submits elements at these times, until all are over."""
        for element, secs in enumerate(times):
            self._event_loop.loop.call_later(secs, self._submit, element)
        return self._run(len(times))

    def play_bundle(self, count):
        """Submits as many elements as a bundle may have on their way, until all are over."""
        left = iter(range(count))

        def submit():
            for element in islice(left, max(0, self._endpoint.room - self._underway)):
                self._submit(element)
            if len(self.ended) < count:
                self._event_loop.loop.call_later(0.01, submit)

        self._event_loop.loop.call_soon(submit)
        return self._run(count)

    def _run(self, count):
        loop = self._event_loop.loop
        asyncio.set_event_loop(loop)
        try:
            with pytest.raises(Stuck):
                loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        assert sorted(self.ended) == list(range(count))
        return self

    def _submit(self, element):
        self._underway += 1
        batch = Batch([element], [element], 1)
        inbox, context = Inbox(), contextvars.copy_context()
        inbox.put = lambda call: self._end(element, call)
        self._endpoint.submit(EndpointCall("", batch, None, [element], None, inbox, context))

    def _end(self, element, call):
        self._underway -= 1
        self.ended[element] = self._event_loop.loop.time(), call

    @property
    def secs(self):
        """When the last one was over."""
        return max(when for when, _ in self.ended.values())

    @property
    def failed(self):
        return {element: call.tries for element, (_, call) in self.ended.items() if call.error}

    def times(self, begin, end):
        """When requests were sent, between these times."""
        return [when for when, _ in self.sent if begin <= when < end]
