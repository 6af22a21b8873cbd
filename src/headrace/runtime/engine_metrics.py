"""Finds the recorders for metrics that a handler writes through an engine's own API, if that engine is imported."""

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

    def load_imported(self) -> bool:
        """Loads the recorders of engines imported since the last call; returns whether there were any. Cheap if not."""
        found = [plug_in for plug_in in self._unused if plug_in.name in sys.modules]
        for plug_in in found:
            self._recorders.append(plug_in.load()())
            self._unused.remove(plug_in)
        return bool(found)

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
                parts += [
                    stack.enter_context(recorder.recording(process_wide=process_wide)) for recorder in self._recorders
                ]
                yield records
        finally:
            records.extend(chain.from_iterable(parts))
        if self.load_imported():
            _LOGGER.info(
                "The handler imported an engine while it worked: what it counted with that engine's metrics in this "
                "piece of work is lost. Import it where the handler's module begins."
            )
