"""Subscribers receive events while they are subscribed."""

from __future__ import annotations

from headrace.core.events import BatchFailed
from headrace.runtime.observers import FanOut, subscribed


class Ear:
    def __init__(self):
        self.heard = []

    def on_event(self, event):
        self.heard.append(event)


def test_events_reach_own_observers_and_subscribers():
    own, subscriber = Ear(), Ear()
    everybody = FanOut(own)
    first, second, third = (BatchFailed("", n, ValueError()) for n in range(3))
    everybody.on_event(first)
    with subscribed(subscriber):
        everybody.on_event(second)
    everybody.on_event(third)
    assert own.heard == [first, second, third]
    assert subscriber.heard == [second]
