"""What a worker needs to know of a transform: one immutable value, pickled to each worker.

Each version of the transform's models has a spec of its own: what an update asks for becomes a ``Change``, and
``with_models`` applies it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.clock import Clock
from headrace.core.config import Budget, RetryConfig
from headrace.core.errors import ConfigurationError, UnknownKeyError
from headrace.runtime.plan import ONLY, Handler, Plan, Refreshed

_OF_FALLBACK = "\0fallback"
"""Ends the name of a fallback's transform, with its number."""


class ModelUpdate(NamedTuple):
    """An announcement of a newer model."""

    timestamp: int
    """In microseconds; an update with an earlier one than the latest is ignored."""
    value: Any
    """A ``ModelMetadata`` or a list of ``KeyModelPathMapping``; None: no update yet."""


class FileWatch(NamedTuple):
    """How to find newer models as files, if nothing else announces them."""

    pattern: str
    scan: Callable[[], Sequence[ModelUpdate]]
    """Returns updates for files newer than the transform, newest first; raises if no file matches at all."""
    interval_secs: float
    """Seconds between two looks. A bundle starts each look; the first bundle waits for it."""


class BudgetSpec(NamedTuple):
    """What requests cost and may cost."""

    budget: Budget
    name: str
    """Sessions of one process with the same name spend it together."""


class CacheSpec(NamedTuple):
    """Where predictions are kept."""

    path: str
    max_bytes: int
    models: tuple[tuple[Any, str], ...]
    """By the model's name, a digest of what decides its predictions."""


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
    """Exceptions that become failures; all others are raised."""
    caught_by_user: type[BaseException] | tuple[type[BaseException], ...] | None = None
    """Which of the failures of a session with a fallback are not raised in the end; None: all."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    isolated: bool = False
    timeout_secs: float | None = None
    """Seconds that an operation or a load may take in a host."""
    shared: frozenset[Any] = frozenset()
    """The names of models that all worker processes of the machine share, in one copy or in ``copies``."""
    copies: int = 1
    """The number of hosts of the only model; for keyed models, ``copies_of`` applies."""
    automatic: bool = False
    """Whether to share only if the machine's memory is too small for a copy in each process."""
    linger_secs: float | None = None
    """Seconds for which the machine keeps an unused shared model; None: not set by the user."""
    origin: str = ""
    """Identifies the handler: transforms created as one have the same origin."""
    pipeline: str = ""
    """Namespace of model identifiers: different pipelines share no models."""
    branch: str = ""
    """Separates sessions of one transform that differ in their inference arguments; they share models."""
    gathered: bool = False
    """Whether an earlier step gathers elements across bundles; what arrives together may then share a batch."""
    watch: FileWatch | None = None
    quota_names: tuple[tuple[Any, str], ...] = ()
    """Models, and the quotas that their requests count against."""
    fallbacks: tuple[SessionSpec, ...] = ()
    """The sessions for elements that the models of this one cannot do, in order; ``of_fallbacks`` completes them."""
    cache: CacheSpec | None = None
    """Where predictions that were made before are looked up, if at all."""
    budget: BudgetSpec | None = None
    """What requests cost and may cost, if that is known and limited."""

    @property
    def is_hosted_or_shared(self) -> bool:
        """Whether models are in hosts or in shared memory rather than loaded by this process."""
        return self.isolated or bool(self.shared)

    @property
    def sends_requests(self) -> bool:
        """Whether a model, or a fallback, sends requests."""
        return any(one.plan.concurrent for one in (self, *self.fallbacks))

    @property
    def has_engines_in_hosts(self) -> bool:
        """Whether the models are engines, and in hosts, which take requests one by one."""
        return self.isolated and bool(self.plan.concurrent)

    @property
    def preprocesses_in_hosts(self) -> bool:
        """Whether elements are preprocessed where their model is; else bundles do it, before they queue them."""
        return self.isolated and not self.has_engines_in_hosts

    def copies_of(self, name: Any) -> int:
        """The number of hosts of a model that lives in hosts; a model with more than one always does."""
        if name not in self.shared:
            return 1
        return max(1, self.plan.models[name].model_copies()) if self.plan.routed else self.copies

    @property
    def resource_hints(self) -> dict[str, Any]:
        """Beam's hints for the transform: the handler's, and those of its fallbacks that do not contradict them."""
        hints: dict[str, Any] = {}
        for spec in (*reversed(self.fallbacks), self):
            hints |= spec.plan.handler.get_resource_hints()
        return hints

    @property
    def identity(self) -> str:
        """Identifies a session: the transform, its model versions, and its inference arguments."""
        refreshed = sorted(self.plan.refreshed.items(), key=repr)
        return "\0".join([self.transform, self.branch, *([repr(refreshed)] if refreshed else [])])

    @property
    def cache_name(self) -> str:
        """Identifies this process's model cache."""
        return f"{self.pipeline}\0{self.model_identifier}"

    def for_host(self) -> SessionSpec:
        """The spec for use inside a host; the owner keeps to the budget."""
        here = replace(self, isolated=False, shared=frozenset(), automatic=False)
        return replace(here, watch=None, fallbacks=(), budget=None)

    def catching_for_fallback(self) -> SessionSpec:
        """The spec with all exceptions caught; ``raise_uncaught`` raises those that the user does not want caught."""
        caught = self.caught if isinstance(self.caught, tuple) else (self.caught,)
        return replace(self, caught=(Exception, *caught), caught_by_user=self.caught)

    def of_fallbacks(self) -> list[SessionSpec]:
        """The specs of the fallbacks' sessions, with what they have in common with this one."""
        return [
            replace(
                own,
                plan=replace(own.plan, postprocess=(*own.plan.postprocess, *self.plan.postprocess)),
                transform=f"{self.transform}{_OF_FALLBACK}{own.plan.rank}",
                inference_args=self.inference_args,
                caught=self.catching_for_fallback().caught,
                linger_secs=self.linger_secs,
                pipeline=self.pipeline,
                branch=self.branch,
                budget=self.budget,
            )
            for own in self.fallbacks
        ]

    @property
    def own_transform(self) -> str:
        """The name of the transform; the sessions of its models' versions and of its fallbacks have the same."""
        return self.transform.partition(_OF_FALLBACK)[0]


Change: TypeAlias = dict[Any, Refreshed]
"""The models to replace: by key if the key selects the model, else under ``ONLY``."""


class Version(NamedTuple):
    """All models that replace the handlers' own; equal if the models are."""

    models: frozenset[tuple[Any, Refreshed]] = frozenset()

    def after(self, change: Mapping[Any, Refreshed]) -> Version:
        """The version with a change applied."""
        return Version(frozenset({**dict(self.models), **change}.items()))

    def __str__(self) -> str:
        """The models' paths."""
        return ", ".join(sorted({one.path for _, one in self.models})) or "the handler's own"


def change_in(value: Any, plan: Plan) -> Change:
    """The change that a ``ModelMetadata`` or a list of ``KeyModelPathMapping`` asks for; empty if its path is.

    Beam's classes of these names work as well as Headrace's. Keys that are not named keep their models.

    Raises:
        ConfigurationError: the update does not fit the handler.
    """
    if plan.routed:
        if isinstance(value, list | tuple) and all(hasattr(one, "update_path") for one in value):
            return _by_key(value, plan)
    elif hasattr(value, "model_id") and hasattr(value, "model_name"):
        return {ONLY: Refreshed(str(value.model_id), str(value.model_name))} if value.model_id else {}
    cure = "one model: it is refreshed with a ModelMetadata"
    if plan.routed:
        cure = "models by key: a list of KeyModelPathMapping does that"
    raise ConfigurationError(f"{plan.name} has {cure}, not {value!r}.")


def _by_key(mappings: Iterable[Any], plan: Plan) -> Change:
    change: Change = {}
    for mapping in mappings:
        if not mapping.update_path:
            raise ConfigurationError(f"the KeyModelPathMapping of {mapping.keys} needs an update_path.")
        for key in mapping.keys:
            if key in change:
                raise ConfigurationError(f"{key!r} appears in several KeyModelPathMappings; one path is enough.")
            try:
                plan.handler.cohort(key)
            except UnknownKeyError as error:
                raise ConfigurationError(f"{key!r} has no model to be refreshed: no mapping names it.") from error
            change[key] = Refreshed(mapping.update_path, mapping.model_id)
    return change


def with_models(version: Version, fresh: Callable[[], SessionSpec]) -> SessionSpec:
    """The spec of a session with this version's models."""
    spec = fresh()
    if not version.models:
        return spec
    change = dict(version.models)
    if spec.plan.routed:
        return _routed(spec, change, fresh)
    spec.plan.handler.update_model_path(change[ONLY].path)
    return replace(spec, plan=replace(spec.plan, refreshed=change))


def _routed(spec: SessionSpec, change: Change, fresh: Callable[[], SessionSpec]) -> SessionSpec:
    """Splits a model whose keys now need different paths; the first key keeps the model's name."""
    keyed, cache = spec.plan.handler, spec.cache
    groups: dict[tuple[Any, str | None], list[Any]] = defaultdict(list)
    for key, model in keyed.cohort_of.items():
        groups[model, change[key].path if key in change else None].append(key)
    handlers: dict[Any, Handler] = {}
    name_of: dict[Any, Any] = {}
    refreshed: Change = {}
    before: dict[Any, Any] = {}
    for (model, path), keys in groups.items():
        name = model if model in keys else keys[0]
        handlers[name] = keyed.cohorts[model] if name == model else fresh().plan.handler.cohorts[model]
        name_of.update(dict.fromkeys(keys, name))
        before[name] = model
        if path is not None:
            handlers[name].update_model_path(path)
            refreshed[name] = change[name]
    keyed.cohorts, keyed.cohort_of = handlers, name_of
    batching = {name: spec.plan.batching_of(model) for name, model in before.items()}
    remote, shared = (
        frozenset(name for name, model in before.items() if model in some) for some in (spec.plan.remote, spec.shared)
    )
    plan = replace(spec.plan, models=handlers, refreshed=refreshed, own_batching=batching, remote=remote)
    if cache is not None:
        digests = dict(cache.models)
        cache = cache._replace(models=tuple((name, digests[model]) for name, model in before.items()))
    return replace(spec, plan=plan, shared=shared, cache=cache)


def names_to_load(now: Plan, before: Plan, in_use: set[Any]) -> list[Any]:
    """Which keyed models to preload: those whose older version is in use. Else the only model."""
    if not now.routed:
        return [ONLY]
    return [name for name in now.models if before.handler.cohort(name) in in_use]
