"""Running totals in memory, for a progress line or a summary."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from headrace.core.errors import as_type_name
from headrace.core.events import (
    BatchCompleted,
    BatchFailed,
    CacheUsed,
    ElementFailed,
    ElementsSkipped,
    Event,
    ModelLoaded,
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
    model_seconds: float = 0.0
    """Time in ``run_inference``, summed over threads."""
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
                self.model_seconds += event.seconds
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
