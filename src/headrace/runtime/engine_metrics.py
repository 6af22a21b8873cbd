"""Finds who records what a handler counts with an engine's own metrics, where that engine is loaded already."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from typing import Protocol

from headrace.core.events import HandlerMetric

_LOGGER = logging.getLogger(__name__)


class MetricRecorder(Protocol):
    """Records for one engine."""

    def recording(self, *, process_wide: bool = True) -> AbstractContextManager[list[HandlerMetric]]:
        """A list that holds, once the context is left, what this thread counted while it was open.

        Args:
            process_wide: whether to take along what this process counted for itself as a whole.
        """
        ...


class EngineMetrics:
    """The recorders of all engines that a handler has imported; loads none for an engine that nobody imported.

    Made once a process, since that reads the metadata of every installed package (tens of milliseconds).
    """

    def __init__(self) -> None:
        self._unused = list(importlib.metadata.entry_points(group="headrace.recorders"))
        self._recorders: list[MetricRecorder] = []

    def look(self) -> bool:
        """Loads the recorders of engines that have been imported since the last look; tells whether there are any.

        Costs nothing to speak of where there is nothing new.
        """
        found = [plug_in for plug_in in self._unused if plug_in.name in sys.modules]
        for plug_in in found:
            self._recorders.append(plug_in.load()())
            self._unused.remove(plug_in)
        return bool(found)

    @contextmanager
    def recording(self, *, process_wide: bool = True) -> Iterator[list[HandlerMetric]]:
        """A list that holds, once the context is left, what this thread counted while it was open.

        It is filled when an exception leaves the context, too. An engine that is imported within the context is heard
        from the next one on.
        """
        self.look()
        records: list[HandlerMetric] = []
        parts: list[list[HandlerMetric]] = []
        with ExitStack() as stack:
            stack.callback(lambda: records.extend(chain.from_iterable(parts)))  # runs last, when the parts are filled
            parts.extend(
                [stack.enter_context(recorder.recording(process_wide=process_wide)) for recorder in self._recorders]
            )
            yield records
        if self.look():
            _LOGGER.info(
                "The handler imported an engine while it worked: what it counted with that engine's metrics in this "
                "piece of work is lost. Import it where the handler's module begins."
            )
