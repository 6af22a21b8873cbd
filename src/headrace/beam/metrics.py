"""Figures into Beam's metrics; only from the bundle's own thread, elsewhere Beam loses them silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import repeat
from typing import Any

from apache_beam.metrics import Metrics
from apache_beam.metrics.metricbase import MetricName

from headrace.core.events import Event, HandlerMetric


class BeamSink:
    """Beam's counters and distributions."""

    def increment(self, namespace: str, name: str, amount: int) -> None:
        """Adds to a counter."""
        _counter(namespace, name).inc(amount)

    def update(self, namespace: str, name: str, value: int) -> None:
        """Adds a value to a distribution."""
        _distribution(namespace, name).update(value)


@cache
def _counter(namespace: str, name: str) -> Any:
    return Metrics.counter(namespace, name)


@cache
def _distribution(namespace: str, name: str) -> Any:
    return Metrics.distribution(namespace, name)


class MetricReplay:
    """An observer that counts in the bundle what a handler counted in a model host, with the same result."""

    def on_event(self, event: Event) -> None:
        """Counts."""
        if not isinstance(event, HandlerMetric):
            return
        name = MetricName(event.namespace, event.name, event.urn, dict(event.labels))
        scope = {"process_wide": True} if event.process_wide else {}  # which not every version's metrics take
        match event.kind:
            case "counter":
                Metrics.DelegatingCounter(name, **scope).inc(event.value)
            case "distribution":
                _each(Metrics.DelegatingDistribution(name, **scope).update, values_with(*event.value))
            case "gauge":
                Metrics.DelegatingGauge(name, **scope).set(event.value)
            case "string_set":
                _each(Metrics.DelegatingStringSet(name).add, event.value)
            case "bounded_trie":
                _each(Metrics.DelegatingBoundedTrie(name).add, event.value)
            case "histogram":
                bucket_type, values = event.value
                _each(Metrics.DelegatingHistogram(name, bucket_type, None).update, values)


def _each(update: Callable[[Any], None], values: Iterable[Any]) -> None:
    for value in values:
        update(value)


def values_with(count: int, total: int, least: int, most: int) -> Iterator[int]:
    """Some ``count`` integers (at least 1) with this sum, smallest and largest: all that a distribution knows.

    The sum may have overflowed the 64 bits in which a distribution adds up; that of these integers does so, too.
    """
    yield least
    if count > 1:
        yield most
    if count > 2:
        lowest = (count - 2) * least
        rest = lowest + (total - least - most - lowest) % 2**64
        share, more = divmod(rest, count - 2)
        yield from repeat(share + 1, more)
        yield from repeat(share, count - 2 - more)
