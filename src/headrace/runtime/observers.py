"""Who is told what happens in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.events import Event, Observer

_subscribers: list[Observer] = []


@contextmanager
def subscribed(observer: Observer) -> Iterator[None]:
    """Tells ``observer``, while the context is open, what happens in every session of this process."""
    _subscribers.append(observer)
    try:
        yield
    finally:
        _subscribers.remove(observer)


class FanOut:
    """Passes events on to some observers and to all who have subscribed."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_event(self, event: Event) -> None:
        """Passes the event on."""
        for observer in (*self._observers, *_subscribers):
            observer.on_event(event)
