"""Beam's metrics: of events, in a bundle; and of a handler in a model host, which has no bundle.

A bundle's metrics are updated on its own thread: on any other, Beam silently drops updates. In a host a handler's
updates are recorded, and the host's owner repeats them in its bundle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from typing import Any

from apache_beam.metrics import Metrics, cells
from apache_beam.metrics.execution import MetricsContainer, MetricsEnvironment
from apache_beam.metrics.metricbase import MetricName
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory

from headrace.core.events import Event, HandlerMetric
from headrace.metrics.totals import InferenceMetrics
from headrace.runtime.observers import FanOut
from headrace.runtime.plan import ONLY
from headrace.runtime.worker import AnyWorker

_counter, _distribution = cache(Metrics.counter), cache(Metrics.distribution)


def observer_of(worker: AnyWorker) -> FanOut:
    """The observer of a worker's bundles: updates Beam's metrics, and forwards events to all subscribers."""
    plan = worker.plan
    if worker.handler_reports:
        return FanOut(MetricReplay())
    batch_elements = plan.batching.record_metrics and not plan.prebatched
    refreshed = plan.refreshed[ONLY].name if ONLY in plan.refreshed and not plan.routed else ""
    metrics = InferenceMetrics(
        lambda namespace, name, amount: _counter(namespace, name).inc(amount),
        lambda namespace, name, value: _distribution(namespace, name).update(value),
        worker.namespace,
        batch_elements=batch_elements,
        refreshed=refreshed,
    )
    return FanOut(MetricReplay(), metrics)


class MetricReplay:
    """An observer that repeats in the bundle a handler's metric updates in a model host, with the same result."""

    def on_event(self, event: Event) -> None:
        """Repeats the updates of a ``HandlerMetric``; ignores other events."""
        if not isinstance(event, HandlerMetric):
            return
        name = MetricName(event.namespace, event.name, event.urn, dict(event.labels))
        scope = {"process_wide": True} if event.process_wide else {}  # older versions of Beam lack the argument
        match event.kind:
            case "counter":
                Metrics.DelegatingCounter(name, **scope).inc(event.value)
            case "distribution":
                update = Metrics.DelegatingDistribution(name, **scope).update
                for value in values_of_summary(*event.value):
                    update(value)
            case "gauge":
                Metrics.DelegatingGauge(name, **scope).set(event.value)
            case "string_set":
                strings = Metrics.DelegatingStringSet(name)
                for text in event.value:
                    strings.add(text)


def values_of_summary(count: int, total: int, smallest: int, largest: int) -> Iterator[int]:
    """Values that a distribution cannot tell from the original ones: of this count, sum, minimum and maximum.

    A distribution adds up in 64 bits. Where ``total`` has overflowed, so does the sum of these values.
    """
    yield smallest
    if count > 1:
        yield largest
    if count > 2:
        lowest = (count - 2) * smallest
        rest = lowest + (total - smallest - largest - lowest) % 2**64
        share, more = divmod(rest, count - 2)
        yield from repeat(share + 1, more)
        yield from repeat(share, count - 2 - more)


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
