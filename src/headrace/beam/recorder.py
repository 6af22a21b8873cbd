"""Records a handler's updates of Beam's metrics in a model host, which has no bundle; the host's owner replays them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.metrics import cells
from apache_beam.metrics.execution import MetricsContainer, MetricsEnvironment
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory

from headrace.core.events import HandlerMetric


class BeamRecorder:
    """Makes Beam's metrics work on a thread that runs no bundle; the runtime finds this class by its entry point."""

    def __init__(self) -> None:
        self._thread = _ThreadState()

    @contextmanager
    def recording(self, *, process_wide: bool = True) -> Iterator[list[HandlerMetric]]:
        """While it is open, records this thread's updates as a bundle would, in a list that is filled at its end.

        With ``process_wide`` also metrics that count for the whole process, from all threads: it empties Beam's
        container of them, which in a model host nothing else reads.
        """
        records: list[HandlerMetric] = []
        container = self._thread.container
        outer, container.metrics = container.metrics, {}
        tracker = statesampler.get_current_tracker()
        statesampler.set_current_tracker(self._thread.sampler)
        try:
            yield records
        finally:
            statesampler.set_current_tracker(tracker)
            if container.metrics:
                records += _drained(container.metrics, process_wide=False)
            if process_wide and MetricsEnvironment.process_wide_container().metrics:
                records += _drained(MetricsEnvironment.process_wide_container().metrics, process_wide=True)
            container.metrics = outer


class _ThreadState(threading.local):
    """A thread's container, and the sampler by which Beam finds it; made once per thread, in 20 microseconds."""

    def __init__(self) -> None:
        self.container = MetricsContainer("handler")
        self.sampler = statesampler.StateSampler("headrace", CounterFactory())  # does not sample unless started
        state = self.sampler.scoped_state("handler", "process", metrics_container=self.container)
        state.__enter__()  # never exited: it applies while its sampler is the thread's


_READERS: dict[type, tuple[Any, Callable[[Any], Any]]] = {
    cells.CounterCell: ("counter", lambda data: data),
    cells.DistributionCell: ("distribution", lambda at: (at.count, at.sum, at.min, at.max) if at.count else None),
    cells.GaugeCell: ("gauge", lambda data: data.value if data.timestamp else None),
    cells.StringSetCell: ("string_set", lambda data: tuple(data.string_set)),
}
"""By type of cell: the metric's kind, and its value of what the cell has; None if no update was accepted."""


def _drained(metrics: dict[Any, Any], *, process_wide: bool) -> Iterator[HandlerMetric]:
    for key in [key for key, cell in list(metrics.items()) if type(cell) in _READERS]:
        cell = metrics.pop(key)  # before it is read: another thread's next update then creates a new one
        kind, read = _READERS[type(cell)]
        value, name = read(cell.get_cumulative()), key.metric_name
        if value is not None:
            labels = tuple(name.labels.items())
            yield HandlerMetric(kind, name.namespace, name.name, value, process_wide, name.urn, labels)
