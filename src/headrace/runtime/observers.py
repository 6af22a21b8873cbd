"""Distributes the events of this process, and finds the recorders of what handlers count with an engine's metrics."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from typing import Protocol

from headrace.core.events import Event, HandlerMetric, Observer

_subscribers: list[Observer] = []


@contextmanager
def subscribed(observer: Observer) -> Iterator[None]:
    """While the context is open, ``observer`` receives the events of every session of this process."""
    _subscribers.append(observer)
    try:
        yield
    finally:
        if observer in _subscribers:  # else this is a forked child
            _subscribers.remove(observer)


class FanOut:
    """Forwards events to the given observers and to all subscribers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_event(self, event: Event) -> None:
        """Forwards the event."""
        for observer in (*self._observers, *_subscribers):
            observer.on_event(event)


class MetricRecorder(Protocol):
    """Records the metrics of one engine."""

    def recording(self, *, process_wide: bool = True) -> AbstractContextManager[list[HandlerMetric]]:
        """A list that holds, after the context, what this thread counted within it.

        Args:
            process_wide: whether to include what was counted for the process as a whole.
        """
        ...


class EngineMetrics:
    """The recorders of all engines that are imported; never imports an engine itself.

    Create one per process: the constructor reads the metadata of every installed package (tens of milliseconds).
    """

    def __init__(self) -> None:
        self._unused = list(importlib.metadata.entry_points(group="headrace.recorders"))
        self._recorders: list[MetricRecorder] = []

    def load_imported(self) -> None:
        """Loads the recorders of engines imported since the last call. Cheap if there are none."""
        for plug_in in [plug_in for plug_in in self._unused if plug_in.name in sys.modules]:
            self._recorders.append(plug_in.load()())
            self._unused.remove(plug_in)

    @contextmanager
    def recording(self, *, process_wide: bool = True) -> Iterator[list[HandlerMetric]]:
        """A list that holds, after the context, what this thread counted within it.

        It is also filled if an exception leaves the context. Metrics of an engine that is first imported within the
        context are recorded from the next context on.
        """
        self.load_imported()
        records: list[HandlerMetric] = []
        parts: list[list[HandlerMetric]] = []
        try:
            with ExitStack() as stack:
                parts += [stack.enter_context(one.recording(process_wide=process_wide)) for one in self._recorders]
                yield records
        finally:
            records += chain.from_iterable(parts)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_subscribers.clear)  # they watch another process
