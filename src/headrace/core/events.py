"""What happened, as immutable facts; observers receive them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from headrace.core.result import Stage

FALLBACK = "fallback"
"""The name of a fallback's only model, from the second fallback on with a number; those by key are called this, a dash,
and their own name."""


def is_fallback(model: str) -> bool:
    """Whether a model's name is that of a fallback."""
    return model.partition("-")[0].rstrip("0123456789") == FALLBACK


@dataclass(frozen=True)
class TimedEvent:
    """Something that took a while."""

    ended: int = field(default_factory=time.time_ns, compare=False, kw_only=True)
    """When it ended, in nanoseconds since the epoch."""


@dataclass(frozen=True)
class ModelLoaded(TimedEvent):
    """A model was loaded into this process's memory."""

    model: str
    """The model's name within its transform; empty if there is only one."""
    seconds: float
    bytes: int
    """Growth of the process's resident memory during the load; 0 if it shrank."""


@dataclass(frozen=True)
class BatchCompleted(TimedEvent):
    """The model answered a batch."""

    model: str
    examples: int
    bytes: int
    """Size of the batch's data: the handler's ``get_num_bytes``, or the buffers of columnar elements."""
    seconds: float
    """Time in ``run_inference``, including the consumption of a lazy result."""
    useful: float = 0
    """Sum of the examples' lengths if they were sorted by length; else 0."""
    padded: float = 0
    """The same, with each example as long as the longest."""
    where: tuple[str, int] | None = None
    """The file and the number of the first row, counted from 1, if its tag says that."""


@dataclass(frozen=True)
class BatchFailed(TimedEvent):
    """A batch failed as a whole; some of its elements may succeed later, on their own."""

    model: str
    examples: int
    error: BaseException


@dataclass(frozen=True)
class BatchRetried:
    """A model call for a batch, or a part of one, failed for a transient reason and is retried unchanged."""

    model: str
    examples: int
    error: BaseException


@dataclass(frozen=True)
class CallEnded(TimedEvent):
    """A try of a request ended, or a host answered a batch; reported before the batch is, and only if ``WANTED``."""

    model: str
    seconds: float
    is_request: bool = True
    """Whether it was a request to an endpoint or an engine."""
    error_type: str = ""
    operation: str = ""
    """What a generative model was asked, in the words of OpenTelemetry's conventions; empty: it was none."""
    provider: str = ""
    """Whose API it has, in the same words."""
    name: str = ""
    """The model's name there."""
    tokens: tuple[int, int] = (0, 0)
    """Of input and output, as far as they were reported."""


@dataclass(frozen=True)
class RequestsThrottled:
    """A bundle had to wait because a remote endpoint refuses some requests, or all."""

    namespace: str
    """The remote handler's namespace, for this metric."""
    seconds: int


@dataclass(frozen=True)
class UsageReported:
    """A handler reported what requests used, whatever became of them."""

    model: str
    """The model's name as the handler reports it."""
    input_tokens: int
    output_tokens: int
    requests: int = 1
    cost: float | None = None
    """In the currency of the user's prices; None: the model's price is not known."""
    seconds: float | None = None
    """From when an engine in this process got the request to its last token; None: it was no such engine."""
    first_token_secs: float | None = None
    """From when it got the request to the first token; None: not known."""
    where: tuple[str, int] | None = None
    """As that of a batch, for a request."""
    operation: str = field(default="", compare=False)
    """As that of a call."""
    provider: str = field(default="", compare=False)
    cached_tokens: int = field(default=0, compare=False)
    """Of ``input_tokens``, those that the provider had in its cache."""


@dataclass(frozen=True)
class CacheUsed:
    """Predictions were looked up in a cache before the model was called."""

    model: str
    hits: int
    misses: int


@dataclass(frozen=True)
class ElementFailed:
    """An element became a dead letter."""

    stage: Stage
    error: BaseException


@dataclass(frozen=True)
class ElementsSkipped:
    """An operation returned ``headrace.SKIP``: these elements have no output."""

    model: str
    """The model, for inference and postprocessing; empty for preprocessing, or if there is only one."""
    stage: Stage
    elements: int
    """How many elements; for inference on elements that are batches, how many examples."""


@dataclass(frozen=True)
class HostLost:
    """A model host hung and was killed, or died; another replaces it."""

    model: str
    timed_out: bool
    """Whether it was killed because an operation took too long."""
    ending: str
    """How it ended, in words that follow "the host"."""


@dataclass(frozen=True)
class ModelRefreshed:
    """A newer model replaced another in this process."""

    model: str
    """The path that it was loaded from."""
    seconds: float
    """From the start of the load until it served."""


@dataclass(frozen=True)
class RefreshFailed:
    """A newer model could not be loaded; the previous one continues to serve."""

    model: str
    """The path that it was to be loaded from."""
    error: BaseException


@dataclass(frozen=True)
class WorkSampled:
    """What a process did for a while, by samples of its threads."""

    process: int
    seconds: float
    """How long it was sampled."""
    phases: Mapping[str, float]
    """For each ``headrace.core.phases.Phase`` the seconds in which any thread was in it; they overlap."""
    cpu_seconds: float
    """Of the process itself."""
    gauges: Mapping[str, float]
    """At the end: resident bytes as ``memory``; where there are some, requests ``in_flight``, the ``quota`` found in
    requests a second, and of the machine's GPUs ``gpu_busy``, how many, and ``gpu_memory``, bytes."""
    hosts: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """Of processes that work for it, and perhaps for others, by their ids: CPU seconds until now, resident bytes."""


@dataclass(frozen=True)
class HandlerMetric:
    """A metric that a handler updated in a model host, through the API of its engine.

    Holds what one metric amounts to in one piece of work: sums and sets rather than single updates.
    """

    kind: Literal["counter", "distribution", "gauge", "string_set"]
    namespace: str | None
    name: str | None
    value: Any
    """By kind: the sum; (count, sum, minimum, maximum); the last value; the strings."""
    process_wide: bool = False
    """Whether it belongs to the process rather than to the step."""
    urn: str | None = None
    """The engine's identifier, in place of namespace and name, for one of its own metrics."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of a metric with a URN."""


Event = (
    ModelLoaded
    | BatchCompleted
    | BatchFailed
    | BatchRetried
    | CallEnded
    | RequestsThrottled
    | UsageReported
    | CacheUsed
    | ElementFailed
    | ElementsSkipped
    | HostLost
    | ModelRefreshed
    | RefreshFailed
    | HandlerMetric
    | WorkSampled
)


WANTED: set[type] = set()
"""Kinds of events that cost something for each call, reported only while somebody in this process wants them."""


class Observer(Protocol):
    """Receives events on the thread of the bundle that they concern."""

    def on_event(self, event: Event) -> None:
        """Handles an event; must neither block nor raise."""
        ...
