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
    """Longest time in seconds that an element waits for others across bundles; None or 0: it does not wait. For
    unbounded input, ``clock`` must return seconds since 1970."""
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
        for problem in self._wrong_types() or self._problems():
            raise ConfigurationError(problem)

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any], owner: object) -> BatchingConfig:
        """Parses what ``owner.batch_elements_kwargs()`` returned; raises for an option that Beam does not know."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(kwargs) - known)
        if unknown:
            raise ConfigurationError(
                f"{type(owner).__qualname__}.batch_elements_kwargs() returned unknown options {unknown}; "
                f"known are {sorted(known)}."
            )
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

    def _wrong_types(self) -> list[str]:
        counts = ("min_batch_size", "max_batch_size", "lookahead", "lookahead_bytes")
        functions = ("element_size_fn", "length_fn", "clock")
        wrong = [f"{name} must be an int" for name in counts if not isinstance(getattr(self, name), Integral)]
        seconds = ("max_batch_duration_secs",)
        wrong += [f"{name} must be a number" for name in seconds if not isinstance(getattr(self, name) or 0, Real)]
        wrong += [f"{name} must be callable" for name in functions if not callable(getattr(self, name) or len)]
        return [f"{problem}, not {getattr(self, problem.split()[0])!r}." for problem in wrong]

    def _problems(self) -> list[str]:
        checks = [
            (self.max_batch_size >= 1, f"max_batch_size must be at least 1, not {self.max_batch_size}."),
            (self.min_batch_size >= 1, f"min_batch_size must be at least 1, not {self.min_batch_size}."),
            (
                self.min_batch_size <= self.max_batch_size,
                f"Minimum ({self.min_batch_size}) must not be greater than maximum ({self.max_batch_size}) batch size.",
            ),
            (
                not self.target_batch_overhead or 0 < self.target_batch_overhead <= 1,
                f"target_batch_overhead must be between 0 and 1, not {self.target_batch_overhead}.",
            ),
            (
                self.max_batch_weight is None or bool(self.element_size_fn or self.length_fn),
                "max_batch_weight requires element_size_fn: a function from an element to its weight (or length_fn).",
            ),
            (
                self.max_batch_weight is None or self.max_batch_weight > 0,
                f"max_batch_weight must be positive, not {self.max_batch_weight}.",
            ),
            (
                self.bucket_boundaries is None or self.length_fn is not None,
                "bucket_boundaries requires length_fn to be set (batch_length_fn on the handler).",
            ),
            (
                self.bucket_boundaries is None or _is_ascending(self.bucket_boundaries),
                "bucket_boundaries must be a non-empty sorted list of positive values.",
            ),
            (
                not self.columnar or not (self.element_size_fn or self.length_fn),
                "columnar elements have rows and no weights; leave element_size_fn and length_fn out.",
            ),
        ]
        return [message for good, message in checks if not good] + self._problems_of_limits()

    def _problems_of_limits(self) -> list[str]:
        checks = [
            (self.lookahead >= 1, f"lookahead must be at least 1, not {self.lookahead}."),
            (self.lookahead_bytes >= 1, f"lookahead_bytes must be at least 1, not {self.lookahead_bytes}."),
            (
                0 <= (self.max_batch_duration_secs or 0) < math.inf,
                f"max_batch_duration_secs must be finite and at least 0, not {self.max_batch_duration_secs}.",
            ),
            (self.variance >= 0, f"variance must be at least 0, not {self.variance}."),
            (
                bool(self.target_batch_overhead or self._durations()),
                "At least one of target_batch_overhead, target_batch_duration_secs and "
                "target_batch_duration_secs_including_fixed_cost must be positive.",
            ),
            (all(seconds > 0 for seconds in self._durations()), "Target batch durations must be positive."),
        ]
        return [message for good, message in checks if not good]

    def _durations(self) -> list[float]:
        both = (self.target_batch_duration_secs, self.target_batch_duration_secs_including_fixed_cost)
        return [seconds for seconds in both if seconds]


def _is_ascending(boundaries: list[int]) -> bool:
    return bool(boundaries) and boundaries[0] > 0 and boundaries == sorted(boundaries)


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
        if self.scope not in (None, "process", "machine", "auto"):
            raise ConfigurationError(f"placement must be 'process', 'machine' or 'auto', not {self.scope!r}.")
        if self.linger_secs is not None and not (
            isinstance(self.linger_secs, int | float) and 0 <= self.linger_secs < math.inf
        ):
            raise ConfigurationError(f"linger_secs must be a number of seconds, at least 0, not {self.linger_secs!r}.")


@dataclass(frozen=True)
class RetryConfig:
    """Retries of a model call after a transient error, limited in attempts and in time."""

    attempts: int = 3
    """Attempts in total, the first included; 1: no retry."""
    timeout_secs: float = 45.0
    """No retry of any part of a batch starts later than this many seconds after the batch first failed."""
    retryable: Callable[[BaseException], bool] | None = None
    """Whether an exception is transient. None: lost connections, timeouts, errors with an HTTP or gRPC status that says
    so (429, 503, UNAVAILABLE, ...), and exceptions whose attribute ``retryable`` is True."""
    max_retry_after_secs: float = 300.0
    """The longest that a request waits because its endpoint asks for it (Retry-After); beyond, it is not retried."""

    def __post_init__(self) -> None:
        attempts, timeout_secs, retryable, longest = (getattr(self, field.name) for field in fields(self))
        if not isinstance(attempts, int) or attempts < 1:
            raise ConfigurationError(f"attempts must be an int, at least 1, not {attempts!r}.")
        if not isinstance(timeout_secs, int | float) or not 0 < timeout_secs < math.inf:
            raise ConfigurationError(f"timeout_secs must be a positive number of seconds, not {timeout_secs!r}.")
        if not isinstance(longest, int | float) or not 0 <= longest < math.inf:
            raise ConfigurationError(f"max_retry_after_secs must be a number of seconds, at least 0, not {longest!r}.")
        if retryable is not None and not callable(retryable):
            raise ConfigurationError(f"retryable must be a function of an exception, not {retryable!r}.")


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
        if not isinstance(path, str) or not path or "://" in path:
            raise ConfigurationError(f"cache= is the path of a file on a local disk, not {path!r}.")
        if not isinstance(max_bytes, int) or max_bytes < 1 << 20:
            raise ConfigurationError(f"max_bytes must be an int, at least 1,048,576 (1 MiB), not {max_bytes!r}.")


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

    def __post_init__(self) -> None:
        for one in fields(self):
            if not _is_amount(getattr(self, one.name)):
                raise ConfigurationError(
                    f"Price: {one.name} must be a number of at least 0, not {getattr(self, one.name)!r:.80}."
                )


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

    def __post_init__(self) -> None:
        if not isinstance(self.prices, Mapping) or not all(isinstance(one, Price) for one in self.prices.values()):
            raise ConfigurationError(
                f"prices map names of models to prices, such as {{'model-x': Price(input=0.15, output=0.60)}}, not "
                f"{self.prices!r:.80}."
            )
        if self.limit is not None and not (_is_amount(self.limit) and self.limit > 0):
            raise ConfigurationError(f"the budget's limit must be a positive number, not {self.limit!r:.80}.")
        if self.limit is not None and not self.prices:
            raise ConfigurationError("a budget with a limit needs prices: Headrace knows none.")
        tokens = self.max_tokens
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
            raise ConfigurationError(f"max_tokens must be an int of at least 1, not {tokens!r:.80}.")

    def price_of(self, model: str) -> Price | None:
        """The price of a model; None: it has none."""
        return self.prices.get(model, self.prices.get(OTHERS))

    @property
    def has_limit(self) -> bool:
        """Whether it ends a run at all."""
        return self.limit is not None or self.max_tokens is not None


class Spent(NamedTuple):
    """What was used of a budget."""

    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*map(sum, zip(self, other, strict=True)))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
