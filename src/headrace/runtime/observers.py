"""Distributes the events of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.events import Event, Observer

_subscribers: list[Observer] = []


@contextmanager
def subscribed(observer: Observer) -> Iterator[None]:
    """While the context is open, ``observer`` receives the events of every session of this process."""
    _subscribers.append(observer)
    try:
        yield
    finally:
        _subscribers.remove(observer)


class FanOut:
    """Forwards events to the given observers and to all subscribers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_event(self, event: Event) -> None:
        """Forwards the event."""
        for observer in (*self._observers, *_subscribers):
            observer.on_event(event)
