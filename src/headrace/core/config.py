"""User configuration: frozen dataclasses that validate themselves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

from headrace.core.errors import ConfigurationError

OF_THE_TRANSFORM = frozenset(
    ("max_batch_duration_secs", "clock", "record_metrics", "lookahead_bytes", "overlap", "columnar")
)
"""Options of BatchingConfig that apply to all models of a transform; the others may differ between keyed models."""


@dataclass(frozen=True)
class BatchingConfig:
    """When a batch is complete. Names, defaults and meanings are those of ``apache_beam.BatchElements`` 2.77.

    With ``element_size_fn`` and no ``max_batch_weight``, sizes (minimum, maximum, targets) are sums of
    ``element_size_fn``, as in Beam; with ``max_batch_weight``, sizes count elements and weight has its own limit. With
    ``length_fn`` or ``max_batch_weight`` elements are sorted, and weights count padding.
    """

    min_batch_size: int = 1
    """A target: the last batch of a bundle may be smaller."""
    max_batch_size: int = 10_000
    """Never exceeded, except by a single element that alone is larger."""
    target_batch_overhead: float | None = 0.05
    """Largest share of a batch's time that may be its fixed cost, 0 < share <= 1; None: no such target."""
    target_batch_duration_secs: float | None = 10.0
    """Longest time for a batch in seconds, its fixed cost not counted; None: no such target."""
    target_batch_duration_secs_including_fixed_cost: float | None = None
    max_batch_duration_secs: float | None = None
    """Longest time in seconds that an element of unbounded input waits for others across bundles; None or 0: none.
    ``clock`` must then return seconds since 1970."""
    max_batch_weight: int | None = None
    """Largest weight of a batch: the number of elements times the largest ``element_size_fn``, or else ``length_fn``.
    Elements are sorted by it. A heavier element gets a batch of its own."""
    element_size_fn: Callable[[Any], int] | None = None
    variance: float = 0.25
    """How far, relatively, to vary sizes around the best one, so that the cost per element can be estimated."""
    clock: Callable[[], float] | None = None
    """A clock in seconds; measures batches in place of the transform's clock."""
    record_metrics: bool = True
    """Whether to count batch sizes and times under Beam's namespace ``BatchElements``."""
    length_fn: Callable[[Any], int] | None = None
    """The length of an element, if a batch's elements are padded to the longest. Elements are then sorted, and size and
    weight count padding: the number of elements times the largest ``element_size_fn`` (or ``length_fn``)."""
    bucket_boundaries: list[int] | None = None
    """Lengths at which buckets begin; elements of different buckets never share a batch."""
    lookahead: int = 2048
    """How many elements are sorted together."""
    lookahead_bytes: int = 64_000_000
    """Roughly how many bytes of a bundle's elements may wait, sorted or not: beyond that, a batch that has reached
    ``min_batch_size`` leaves, or the largest of several models. Not in Beam, like ``lookahead``."""

    overlap: bool = True
    """Whether a batch may run on another thread while the bundle's thread goes on decoding and preprocessing, if that
    is faster. Not in Beam."""
    columnar: bool = False
    """Whether elements are columnar (many rows side by side), from which batches are cut; sizes then count rows. Not in
    Beam."""

    def __post_init__(self) -> None:
        for name in ("min_batch_size", "max_batch_size", "lookahead", "lookahead_bytes"):
            value = getattr(self, name)
            require(isinstance(value, Integral), f"{name} must be an int, not {value!r}.")
            require(value >= 1, f"{name} must be at least 1, not {value}.")
        for name in ("element_size_fn", "length_fn", "clock"):
            value = getattr(self, name)
            require(value is None or callable(value), f"{name} must be callable, not {value!r}.")
        self._require_consistent_sizes()
        self._require_consistent_targets()

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any], owner: object) -> BatchingConfig:
        """Parses what ``owner.batch_elements_kwargs()`` returned; raises for an option that Beam does not know."""
        known = sorted(field.name for field in fields(cls))
        unknown = sorted(set(kwargs).difference(known))
        where = f"{type(owner).__qualname__}.batch_elements_kwargs()"
        require(not unknown, f"{where} returned unknown options {unknown}; known are {known}.")
        return cls(**kwargs)

    def sorted_by(self, length_fn: Callable[[Any], Any], lookahead: int | None = None) -> BatchingConfig:
        """These options with elements sorted by length though nobody gave a ``length_fn``.

        By default fewer elements are collected than if somebody had, since nothing comes out until they are: at least
        512, and up to 2,048 if that is 16 batches of the minimum size.
        """
        smallest = int(self.min_batch_size)
        some = max(512 // smallest, min(16, 2048 // smallest), 2)
        return replace(self, length_fn=length_fn, lookahead=lookahead or some * smallest)

    @property
    def sizes_are_weights(self) -> bool:
        """Whether sizes are sums of ``element_size_fn`` rather than counts."""
        return self.element_size_fn is not None and self.max_batch_weight is None

    @property
    def sorts(self) -> bool:
        """Whether elements are sorted before batches are cut, to reduce padding."""
        return self.length_fn is not None or self.max_batch_weight is not None

    @property
    def learns_from_weights(self) -> bool:
        """Whether a batch's time depends on its weight rather than on its number of elements."""
        return self.sizes_are_weights or (self.sorts and not self.fixed_size)

    @property
    def adaptive_bounds(self) -> tuple[int, float]:
        """Smallest and largest size that an adaptive size may take, in the unit that it is learnt in."""
        if self.learns_from_weights and not self.sizes_are_weights:
            return 0, math.inf  # counts are limited when batches are cut
        return self.min_batch_size, self.max_batch_size

    @property
    def fixed_size(self) -> bool:
        """Whether every full batch has the same size, which makes runs reproducible."""
        return self.min_batch_size == self.max_batch_size

    def _require_consistent_sizes(self) -> None:
        smallest, largest = self.min_batch_size, self.max_batch_size
        require(smallest <= largest, f"Minimum ({smallest}) must not be greater than maximum ({largest}) batch size.")
        weight, boundaries = self.max_batch_weight, self.bucket_boundaries
        require(
            weight is None or bool(self.element_size_fn or self.length_fn),
            "max_batch_weight requires element_size_fn: a function from an element to its weight (or length_fn).",
        )
        require(weight is None or weight > 0, f"max_batch_weight must be positive, not {weight}.")
        require(
            boundaries is None or self.length_fn is not None,
            "bucket_boundaries requires length_fn to be set (batch_length_fn on the handler).",
        )
        require(
            boundaries is None or (bool(boundaries) and boundaries[0] > 0 and boundaries == sorted(boundaries)),
            "bucket_boundaries must be a non-empty sorted list of positive values.",
        )
        require(
            not self.columnar or not (self.element_size_fn or self.length_fn),
            "columnar elements have rows and no weights; leave element_size_fn and length_fn out.",
        )

    def _require_consistent_targets(self) -> None:
        overhead, wait = self.target_batch_overhead, self.max_batch_duration_secs or 0
        both = (self.target_batch_duration_secs, self.target_batch_duration_secs_including_fixed_cost)
        durations = [seconds for seconds in both if seconds]
        require(not overhead or 0 < overhead <= 1, f"target_batch_overhead must be between 0 and 1, not {overhead}.")
        require(isinstance(wait, Real), f"max_batch_duration_secs must be a number, not {wait!r}.")
        require(0 <= wait < math.inf, f"max_batch_duration_secs must be finite and at least 0, not {wait}.")
        require(self.variance >= 0, f"variance must be at least 0, not {self.variance}.")
        require(
            bool(overhead or durations),
            "At least one of target_batch_overhead, target_batch_duration_secs and "
            "target_batch_duration_secs_including_fixed_cost must be positive.",
        )
        require(all(seconds > 0 for seconds in durations), "Target batch durations must be positive.")


def require(is_right: bool, problem: str) -> None:
    """Raises ConfigurationError for a problem."""
    if not is_right:
        raise ConfigurationError(problem)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


Scope = Literal["process", "machine", "auto"]


@dataclass(frozen=True)
class PlacementConfig:
    """Where a model lives: one copy in each worker process or shared by the machine's, and whether in hosts."""

    scope: Scope | None = None
    """``"process"``: one copy in each worker process; ``"machine"``: one for all of the machine's, or as many as the
    handler's ``model_copies()``; ``"auto"``: shared if memory is too small for one copy each. None: what the handler's
    ``share_model_across_processes()`` and ``model_copies()`` ask for."""
    isolate: bool = False
    """Whether each worker process keeps its model in a host, which may hang, crash or run out of memory without harm.
    """
    linger_secs: float | None = None
    """Seconds for which the machine keeps a model after its last client left. None: 60 on an engine, which starts and
    ends worker processes as it likes; 0 on Beam's direct runners, and without an engine."""

    def __post_init__(self) -> None:
        scope, linger = self.scope, self.linger_secs
        is_known = scope in (None, "process", "machine", "auto")
        require(is_known, f"placement must be 'process', 'machine' or 'auto', not {scope!r}.")
        is_right = linger is None or _is_amount(linger)
        require(is_right, f"linger_secs must be a number of seconds, at least 0, not {linger!r}.")


@dataclass(frozen=True)
class RetryConfig:
    """Retries of a model call after a transient error, limited in attempts and in time."""

    attempts: int = 3
    """Attempts in total, the first included; 1: no retry."""
    timeout_secs: float = 45.0
    """No retry of any part of a batch starts later than this many seconds after the batch first failed; three times as
    many if an endpoint refused it (429), since many quotas are counted by the minute."""
    retryable: Callable[[BaseException], bool] | None = None
    """Whether an exception is transient. None: lost connections, timeouts, errors with an HTTP or gRPC status that says
    so (429, 503, UNAVAILABLE, ...), and exceptions whose attribute ``retryable`` is True."""
    max_retry_after_secs: float = 300.0
    """The longest that a request waits because its endpoint asks for it (Retry-After); beyond, it is not retried."""

    def __post_init__(self) -> None:
        attempts, timeout_secs, retryable, longest = (getattr(self, field.name) for field in fields(self))
        is_count = isinstance(attempts, int) and attempts >= 1
        require(is_count, f"attempts must be an int, at least 1, not {attempts!r}.")
        is_positive = _is_amount(timeout_secs) and timeout_secs > 0
        require(is_positive, f"timeout_secs must be a positive number of seconds, not {timeout_secs!r}.")
        require(_is_amount(longest), f"max_retry_after_secs must be a number of seconds, at least 0, not {longest!r}.")
        is_function = retryable is None or callable(retryable)
        require(is_function, f"retryable must be a function of an exception, not {retryable!r}.")


@dataclass(frozen=True)
class CacheConfig:
    """A file of predictions that were made before, shared by all processes that name it."""

    path: str
    """A file on a local disk; it is created if there is none."""
    max_bytes: int = 10_000_000_000
    """The most that it may hold, in bytes; what was written first leaves first."""

    def __post_init__(self) -> None:
        path, max_bytes = self.path, self.max_bytes
        if isinstance(path, os.PathLike):
            object.__setattr__(self, "path", path := os.fspath(path))
        is_path = isinstance(path, str) and path and "://" not in path
        require(bool(is_path), f"cache= is the path of a file on a local disk, not {path!r}.")
        is_enough = isinstance(max_bytes, int) and max_bytes >= 1 << 20
        require(is_enough, f"max_bytes must be an int, at least 1,048,576 (1 MiB), not {max_bytes!r}.")


OTHERS = "*"
"""In prices: every model that has none of its own."""


@dataclass(frozen=True)
class Price:
    """What a model costs, in any one currency."""

    input: float = 0.0
    """For a million tokens of prompts."""
    output: float = 0.0
    """For a million tokens of answers."""
    request: float = 0.0
    """For each request."""
    cached: float | None = None
    """For a million tokens of prompts that the provider had in its cache; None: as ``input``."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "cached" and value is None:
                continue
            require(_is_amount(value), f"Price: {name} must be a number of at least 0, not {value!r:.80}.")


@dataclass(frozen=True)
class Budget:
    """What a run may spend on each machine, by all its worker processes; after that it stops, with a BudgetError.

    Counts what handlers report (``headrace.report_usage``), whatever became of the requests. Requests that are in
    flight when it is spent are finished, and may exceed it.
    """

    limit: float | None = None
    """In the currency of the prices; None: cost is counted, and not limited."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By the model's name, as its handler reports it; ``"*"``: every other one."""
    max_tokens: int | None = None
    """Tokens of prompts and answers together; None: no limit."""
    max_cost_per_row: float | None = None
    """Once the requests for an element have cost more, no other one is sent for it: neither a repeat, nor one to repair
    its answer. Its dead letter has a RowCostError. None: no limit."""

    def __post_init__(self) -> None:
        are_prices = isinstance(self.prices, Mapping) and all(isinstance(one, Price) for one in self.prices.values())
        require(
            are_prices,
            "prices map names of models to prices, such as {'model-x': Price(input=0.15, output=0.60)}, not "
            f"{self.prices!r:.80}.",
        )
        tokens = self.max_tokens
        for name, limit in (("the budget's limit", self.limit), ("max_cost_per_row", self.max_cost_per_row)):
            is_positive = limit is None or (_is_amount(limit) and limit > 0)
            require(is_positive, f"{name} must be a positive number, not {limit!r:.80}.")
        require(bool(self.prices) or not self.needs_prices, "a budget with a limit needs prices: Headrace knows none.")
        is_count = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 1
        require(tokens is None or is_count, f"max_tokens must be an int of at least 1, not {tokens!r:.80}.")

    def price_of(self, model: str) -> Price | None:
        """The price of a model; None: it has none."""
        return self.prices.get(model, self.prices.get(OTHERS))

    @property
    def has_limit(self) -> bool:
        """Whether it may end a run: one for rows does if a model has no price."""
        return self.needs_prices or self.max_tokens is not None

    @property
    def needs_prices(self) -> bool:
        """Whether it cannot be kept without prices."""
        return self.limit is not None or self.max_cost_per_row is not None


class Spent(NamedTuple):
    """What was used of a budget."""

    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*map(sum, zip(self, other, strict=True)))
