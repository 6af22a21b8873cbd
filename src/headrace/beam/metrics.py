"""Figures into Beam's metrics; only from the bundle's own thread, elsewhere Beam loses them silently."""

from __future__ import annotations

from functools import cache
from typing import Any

from apache_beam.metrics import Metrics


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
