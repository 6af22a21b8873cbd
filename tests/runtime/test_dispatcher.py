"""An endpoint's loop: woken only for what would leave at once, and nothing is forgotten meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from headrace.batching.batcher import Batch
from headrace.core.event_loop import EventLoop
from headrace.runtime.dispatcher import Dispatcher
from headrace.runtime.endpoint_calls import EndpointCall, Inbox, Rules

_PATIENCE_SECS = 60


@pytest.fixture
def event_loop():
    loop = EventLoop()
    yield loop
    loop.close()


def call_for(element, inbox):
    return EndpointCall("", Batch([element], [element], 1), None, [element], None, inbox, contextvars.copy_context())


def rules(send, **options):
    return Rules("Handler.request", send, True, False, None, 0, lambda error: False, 60.0, None, **options)


def test_loop_is_woken_only_for_what_would_leave_at_once(event_loop, monkeypatch):
    arrived, go_on = threading.Event(), asyncio.Event()

    async def send(examples, client):
        arrived.set()
        await go_on.wait()
        return examples

    endpoint, inbox, woken = Dispatcher(event_loop, rules(send, max_concurrent=1)), Inbox(), []
    monkeypatch.setattr(event_loop, "call", lambda *args: woken.append(args) or EventLoop.call(event_loop, *args))
    endpoint.submit(call_for(0, inbox))
    assert arrived.wait(_PATIENCE_SECS)
    for element in range(1, 20):
        endpoint.submit(call_for(element, inbox))
    assert len(woken) < 10
    EventLoop.call(event_loop, go_on.set)
    assert [inbox.get(timeout=_PATIENCE_SECS).predictions for _ in range(20)] == [[element] for element in range(20)]


def test_answers_are_not_gathered_once_hardly_any_request_waits(event_loop, monkeypatch):
    monkeypatch.setattr("headrace.runtime.dispatcher._TOGETHER_SECS", 2 * _PATIENCE_SECS)

    async def send(examples, client):
        return examples

    endpoint, inbox = Dispatcher(event_loop, rules(send, max_concurrent=1)), Inbox()
    for element in range(20):
        endpoint.submit(call_for(element, inbox))
    assert [inbox.get(timeout=_PATIENCE_SECS).predictions for _ in range(20)] == [[element] for element in range(20)]
