"""Turns events into sums in memory, and into the metrics of Beam's RunInference under Beam's names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import as_type_name
from headrace.core.events import (
    BatchCompleted,
    BatchFailed,
    BatchRetried,
    CacheUsed,
    ElementFailed,
    ElementsSkipped,
    Event,
    HostLost,
    ModelLoaded,
    ModelRefreshed,
    RefreshFailed,
    RequestsThrottled,
    UsageReported,
    is_fallback,
)
from headrace.core.result import Stage


@dataclass
class Totals:
    """An Observer that adds up events. Thread-safe."""

    predictions: int = 0
    """Examples that a model answered."""
    from_fallback: int = 0
    """Those of them that a fallback answered."""
    batches: int = 0
    failed_batches: int = 0
    loads: int = 0
    load_seconds: float = 0.0
    model_bytes: int = 0
    skipped: int = 0
    """Elements that an operation skipped on purpose, so that they have no output."""
    skipped_before_the_model: int = 0
    """Those of them that preprocessing skipped."""
    cached: int = 0
    """Predictions that came from a cache; they are not among ``predictions``."""
    usage: dict[str, UsageReported] = field(default_factory=dict)
    """What was used of each model, by the name that its handler reports."""
    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many elements failed, by stage and error type."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def failed(self) -> int:
        """How many elements became dead letters."""
        return sum(self.failures.values())

    @property
    def mean_batch_size(self) -> float:
        """Mean number of examples in a batch; 0 before the first."""
        return self.predictions / self.batches if self.batches else 0.0

    def on_event(self, event: Event) -> None:
        """Adds one event."""
        with self._lock:
            if isinstance(event, BatchCompleted):
                self.predictions += event.examples
                self.from_fallback += event.examples if is_fallback(event.model) else 0
                self.batches += 1
            elif isinstance(event, BatchFailed):
                self.failed_batches += 1
            elif isinstance(event, ModelLoaded):
                self.loads += 1
                self.load_seconds += event.seconds
                self.model_bytes += event.bytes
            elif isinstance(event, ElementsSkipped):
                self.skipped += event.elements
                self.skipped_before_the_model += event.elements if event.stage is Stage.PREPROCESSING else 0
            elif isinstance(event, CacheUsed):
                self.cached += event.hits
            elif isinstance(event, UsageReported):
                before = self.usage.get(event.model)
                self.usage[event.model] = event if before is None else added(before, event)
            elif isinstance(event, ElementFailed):
                key = (event.stage.value, as_type_name(event.error))
                self.failures[key] = self.failures.get(key, 0) + 1


def added(one: UsageReported, other: UsageReported) -> UsageReported:
    """The sum of what was used of a model; the cost of what has no price is left out.

    It has seconds only if both are of engines in this process.
    """
    costs = [usage.cost for usage in (one, other) if usage.cost is not None]
    return UsageReported(
        one.model,
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.requests + other.requests,
        sum(costs) if costs else None,
        None if one.seconds is None or other.seconds is None else one.seconds + other.seconds,
    )


Update = Callable[[str, str, int], object]
"""Adds to a metric: its namespace, its name, and how much."""


class InferenceMetrics:
    """Counts under the names that Beam's RunInference uses, in its units; docs/running.md lists them.

    A named model is counted a second time under ``<name>-_<metric>``, as Beam does for keyed models; a refreshed one
    under ``<name>_<metric>``. Usage is counted a second time under the name that the handler reports,
    ``<name>-_<metric>``.

    Args:
        increment: adds to a counter.
        update: adds a value to a distribution.
        namespace: the metrics' namespace.
        batch_elements: whether to count each batch under Beam's namespace ``BatchElements``, too.
        refreshed: the name of the only model, if it was refreshed and has one.
    """

    def __init__(
        self, increment: Update, update: Update, namespace: str, *, batch_elements: bool = False, refreshed: str = ""
    ) -> None:
        self._increment, self._update = increment, update
        self._namespace = namespace
        self._batch_elements = batch_elements
        self._prefix = f"{refreshed}_" if refreshed else ""
        self._uncounted_micros: dict[str, float] = {}
        """Of each model's cost, what is less than a millionth."""

    def on_event(self, event: Event) -> None:
        """Updates the metrics that the event concerns."""
        if isinstance(event, RequestsThrottled):
            self._increment(event.namespace, "cumulativeThrottlingSeconds", event.seconds)
        elif isinstance(event, ModelRefreshed):
            self._increment(self._namespace, "model_refreshes", 1)
        elif isinstance(event, RefreshFailed):
            self._increment(self._namespace, "failed_model_refreshes", 1)
        elif (figures := _FIGURES.get(type(event))) is not None:
            counts, values = figures(event)
            if isinstance(event, UsageReported) and event.cost is not None:
                counts["cost_micros"] = self._micros(event.model, event.cost)
            prefix = f"{event.model}-_" if event.model else self._prefix  # type: ignore[union-attr]
            for record, some in ((self._increment, counts), (self._update, values)):
                for name, value in some.items():
                    for full_name in (name, prefix + name) if prefix else (name,):
                        record(self._namespace, full_name, value)
        if self._batch_elements and isinstance(event, BatchCompleted):
            self._update("BatchElements", "batch_size", event.examples)
            self._update("BatchElements", "msec_per_batch", round(event.seconds * 1e3))

    def _micros(self, model: str, cost: float) -> int:
        """A cost in millionths; what is less than one is added to the next."""
        micros = cost * 1e6 + self._uncounted_micros.get(model, 0.0)
        self._uncounted_micros[model] = micros - int(micros)
        return int(micros)


Figures = tuple[dict[str, int], dict[str, int]]
"""What is added to counters and to distributions, by their names."""


def _of_batch(event: BatchCompleted) -> Figures:
    counts = {"num_inferences": event.examples}
    if event.padded:
        counts |= {"useful_length": round(event.useful), "padded_length": round(event.padded)}
    return counts, {
        "inference_request_batch_size": event.examples,
        "inference_request_batch_byte_size": event.bytes,
        "inference_batch_latency_micro_secs": round(event.seconds * 1e6),
    }


def _of_usage(event: UsageReported) -> Figures:
    times = {}
    if event.first_token_secs is not None:
        times["time_to_first_token_milli_secs"] = round(event.first_token_secs * 1e3)
    if event.seconds:
        times["output_tokens_per_sec"] = round(event.output_tokens / event.seconds)
    names = ("billed_requests", "input_tokens", "output_tokens")
    return dict(zip(names, (event.requests, event.input_tokens, event.output_tokens), strict=True)), times


_FIGURES: dict[type, Callable[[Any], Figures]] = {
    BatchCompleted: _of_batch,
    BatchFailed: lambda _: ({"failed_batches_counter": 1}, {}),
    BatchRetried: lambda _: ({"retried_batches_counter": 1}, {}),
    CacheUsed: lambda event: ({"cache_hits": event.hits, "cache_misses": event.misses}, {}),
    ElementsSkipped: lambda event: ({"skipped_elements_counter": event.elements}, {}),
    HostLost: lambda event: ({"model_host_timeouts" if event.timed_out else "model_host_deaths": 1}, {}),
    ModelLoaded: lambda event: (
        {},
        {"load_model_latency_milli_secs": round(event.seconds * 1e3), "model_byte_size": event.bytes},
    ),
    UsageReported: _of_usage,
}


def usage_figures(usage: Mapping[str, UsageReported]) -> dict[str, dict[str, Any]]:
    """What each model used, as plain values."""
    names = ("requests", "input_tokens", "output_tokens", "cost")
    return {model: {name: getattr(used, name) for name in names} for model, used in usage.items()}


def usage_in(counters: Mapping[str, int]) -> dict[str, UsageReported]:
    """What each model used, from counters by their names."""
    found = {}
    for model in [name.removesuffix("-_billed_requests") for name in counters if name.endswith("-_billed_requests")]:
        names = ("input_tokens", "output_tokens", "billed_requests")
        read, written, requests = (counters.get(f"{model}-_{name}", 0) for name in names)
        micros = counters.get(f"{model}-_cost_micros")
        found[model] = UsageReported(model, read, written, requests, None if micros is None else micros / 1e6)
    return found
