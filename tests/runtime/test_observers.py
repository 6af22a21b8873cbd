"""Subscribers receive events while they are subscribed."""

from __future__ import annotations

from headrace.core.events import BatchFailed
from headrace.runtime.observers import FanOut, subscribed
from toys import Events


def test_events_reach_own_observers_and_subscribers():
    own, subscriber = Events(), Events()
    everybody = FanOut(own)
    first, second, third = (BatchFailed("", n, ValueError()) for n in range(3))
    everybody.on_event(first)
    with subscribed(subscriber):
        everybody.on_event(second)
    everybody.on_event(third)
    assert own == [first, second, third]
    assert subscriber == [second]
