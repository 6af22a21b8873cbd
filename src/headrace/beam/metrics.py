"""Updates Beam's metrics, on the bundle's own thread: on any other, Beam silently drops updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import repeat
from typing import Any

from apache_beam.metrics import Metrics
from apache_beam.metrics.metricbase import MetricName

from headrace.core.events import Event, HandlerMetric
from headrace.metrics.totals import InferenceMetrics
from headrace.runtime.observers import FanOut
from headrace.runtime.plan import ONLY
from headrace.runtime.worker import AnyWorker


def observer_of(worker: AnyWorker) -> FanOut:
    """The observer of a worker's bundles: updates Beam's metrics, and forwards events to all subscribers."""
    plan = worker.plan
    if worker.handler_reports:
        return FanOut(MetricReplay())
    batch_elements = plan.batching.record_metrics and not plan.prebatched
    refreshed = plan.refreshed[ONLY].name if ONLY in plan.refreshed and not plan.routed else ""
    metrics = InferenceMetrics(BeamSink(), worker.namespace, batch_elements=batch_elements, refreshed=refreshed)
    return FanOut(MetricReplay(), metrics)


_counter, _distribution = cache(Metrics.counter), cache(Metrics.distribution)


class BeamSink:
    """Beam's counters and distributions as a ``Sink``."""

    def increment(self, namespace: str, name: str, amount: int) -> None:
        """Adds to a counter."""
        _counter(namespace, name).inc(amount)

    def update(self, namespace: str, name: str, value: int) -> None:
        """Adds a value to a distribution."""
        _distribution(namespace, name).update(value)


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
                _each(Metrics.DelegatingDistribution(name, **scope).update, values_of_summary(*event.value))
            case "gauge":
                Metrics.DelegatingGauge(name, **scope).set(event.value)
            case "string_set":
                _each(Metrics.DelegatingStringSet(name).add, event.value)


def _each(update: Callable[[Any], None], values: Iterable[Any]) -> None:
    for value in values:
        update(value)


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
