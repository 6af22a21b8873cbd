"""What a worker needs to know of a transform: one frozen value, which is pickled to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.core.clock import Clock
from headrace.core.config import RetryConfig
from headrace.runtime.plan import Plan


class ModelUpdate(NamedTuple):
    """What is told of newer models."""

    moment: int
    """When it was said; later news count, not those that come later from somewhere else."""
    value: Any
    """See ``versions.change_in``; None: nothing was said yet."""


class FileWatch(NamedTuple):
    """Where nobody tells of newer models, but files are looked for."""

    pattern: str
    """Of the files."""
    look: Callable[[], Sequence[ModelUpdate]]
    """Tells of those that are newer than the transform, the newest first; raises where there is none at all."""
    interval_secs: float
    """Between two looks; it is a bundle that begins one, and the first bundle waits for it."""


@dataclass(frozen=True)
class SessionSpec:
    """All that a worker needs to know; pickled to it."""

    plan: Plan
    transform: str
    """Unique to the transform: its bundles in one process share a session."""
    model_identifier: str
    """Transforms with the same identifier share models."""
    clock: Clock
    inference_args: dict[str, Any] | None = None
    caught: type[BaseException] | tuple[type[BaseException], ...] = ()
    """Which exceptions become failures; others are raised."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    """What is tried again that failed for a passing reason."""
    isolated: bool = False
    """Whether the models live in a host: a process of their own."""
    timeout_secs: float | None = None
    """The longest that one operation, or the loading of a model, may take in a host."""
    shared: frozenset[Any] = frozenset()
    """The names of the models of which the machine holds one copy, or ``copies``, for all worker processes."""
    copies: int = 1
    """See ``copies_of``; of the only model, where there is only one."""
    automatic: bool = False
    """Whether a shared model is to be shared only if the machine's memory has no room for a copy in each process."""
    linger_secs: float | None = None
    """How long the machine keeps a shared model when nobody uses it any more; None: the user has not said."""
    origin: str = ""
    """Whose handler it is: transforms that were made as one have one."""
    pipeline: str = ""
    """Model identifiers of different pipelines are different."""
    branch: str = ""
    """Tells sessions of one transform apart whose arguments for the model's call differ; they have the same models."""
    gathered: bool = False
    """Whether elements are gathered across bundles beforehand: what comes together then shares a batch, if it may."""
    watch: FileWatch | None = None
    """How newer models are looked for, if they are."""

    @property
    def lives_elsewhere(self) -> bool:
        """Whether models are not simply loaded into this process."""
        return self.isolated or bool(self.shared)

    def copies_of(self, name: Any) -> int:
        """How many hosts that model has, where it lives in hosts; with more than one it does."""
        return max(1, self.plan.models[name].model_copies()) if self.plan.routed else self.copies

    @property
    def identity(self) -> str:
        """What a session of the transform with these models and arguments goes by."""
        refreshed = sorted(self.plan.refreshed.items(), key=repr)
        return "\0".join([self.transform, self.branch, *([repr(refreshed)] if refreshed else [])])

    @property
    def store(self) -> str:
        """What this process's models go by."""
        return f"{self.pipeline}\0{self.model_identifier}"

    def within(self) -> SessionSpec:
        """The same for the process in which a model lives."""
        return replace(self, isolated=False, shared=frozenset(), automatic=False, watch=None)
