"""What happened, as facts; whoever wants them is an Observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headrace.core.result import Stage


@dataclass(frozen=True)
class ModelLoaded:
    """A model has come into this process's memory."""

    model: str
    """The model's name within its transform; empty where there is only one."""
    seconds: float
    bytes: int
    """Growth of the memory that the process uses (its resident set) while it loaded; 0 where it shrank."""


@dataclass(frozen=True)
class BatchCompleted:
    """The model answered a batch."""

    model: str
    examples: int
    bytes: int
    """Size of the batch's data, as the handler's ``get_num_bytes`` counts it; of columnar elements, their buffers."""
    seconds: float
    """Time within ``run_inference``, its lazy result included."""
    useful: float = 0
    """Sum of the examples' lengths, where they were sorted by length; else 0."""
    padded: float = 0
    """The same with each as long as the longest."""


@dataclass(frozen=True)
class BatchFailed:
    """A batch did not go through as a whole (some of its elements may have, later, on their own)."""

    model: str
    examples: int
    error: BaseException


@dataclass(frozen=True)
class BatchRetried:
    """The model's call failed for a batch, or a part of one, for a reason that may pass, and is repeated as it is."""

    model: str
    examples: int
    error: BaseException


@dataclass(frozen=True)
class ElementFailed:
    """An element has become a dead letter."""

    stage: Stage
    error: BaseException


@dataclass(frozen=True)
class ElementsSkipped:
    """An operation gave ``headrace.SKIP``: these elements have no output."""

    model: str
    """Of inference and postprocessing; of preprocessing empty, as it is where there is only one."""
    stage: Stage
    elements: int
    """How many; of inference on elements that are batches, how many of their examples."""


@dataclass(frozen=True)
class HostLost:
    """A model host hung and was killed, or died; another takes its place."""

    model: str
    timed_out: bool
    """Whether it was killed because an operation took too long."""
    ending: str
    """How it ended, in words that follow "the host"."""


@dataclass(frozen=True)
class ModelRefreshed:
    """A newer model has taken the place of another in this process."""

    model: str
    """What it was loaded from."""
    seconds: float
    """From the beginning of its loading until it served."""


@dataclass(frozen=True)
class RefreshFailed:
    """A newer model could not be had; the one that served goes on."""

    model: str
    """What it was to be loaded from."""
    error: BaseException


@dataclass(frozen=True)
class HandlerMetric:
    """A handler has counted in a model host, with the metrics of the engine it was written for.

    It says what one metric came to during one piece of work: values are sums and sets, not single updates.
    """

    kind: Literal["counter", "distribution", "gauge", "string_set", "bounded_trie", "histogram"]
    namespace: str | None
    name: str | None
    value: Any
    """By the kind: the sum; (count, sum, smallest, largest); the last value; the strings; the paths, each a tuple of
    strings; (the engine's bucket type, the values)."""
    process_wide: bool = False
    """Whether it counts for the process instead of for the step."""
    urn: str | None = None
    """What an engine's own metric has in place of a namespace and a name."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of a metric with a URN."""


Event = (
    ModelLoaded
    | BatchCompleted
    | BatchFailed
    | BatchRetried
    | ElementFailed
    | ElementsSkipped
    | HostLost
    | ModelRefreshed
    | RefreshFailed
    | HandlerMetric
)


class Observer(Protocol):
    """Is told what happened, on the thread of the bundle that it happened to."""

    def on_event(self, event: Event) -> None:
        """Takes note; must neither block nor raise."""
        ...
