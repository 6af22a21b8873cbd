"""Versions of a transform's models: what an update asks for, which to load next, and their session's spec. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.clock import backoff
from headrace.core.errors import ConfigurationError, UnknownKeyError
from headrace.runtime.plan import ONLY, Handler, Plan, Refreshed
from headrace.runtime.spec import ModelUpdate, SessionSpec

Change: TypeAlias = dict[Any, Refreshed]
"""The models to replace: by key if the key selects the model, else under ``ONLY``."""


_SHORTEST_PAUSE_SECS = 60.0
"""Seconds before a failed load is tried again: files may have been incomplete. Doubles with each failure in a row."""
_LONGEST_PAUSE_SECS = 3600.0
_RARITY = 10
"""The pause is also at least this many times the duration of the failed attempt."""


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
    one, many = (
        "one model: it is refreshed with a ModelMetadata",
        "models by key: a list of KeyModelPathMapping does that",
    )
    raise ConfigurationError(f"{plan.name} has {many if plan.routed else one}, not {value!r}.")


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
    handlers: dict[Any, Handler] = {}
    name_of: dict[Any, Any] = {}
    refreshed: Change = {}
    before: dict[Any, Any] = {}
    for (model, path), keys in _groups(keyed.cohort_of, change).items():
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


def _groups(name_of: Mapping[Any, Any], change: Change) -> dict[tuple[Any, str | None], list[Any]]:
    """The keys by their model's name and the path that it is to load from."""
    groups: dict[tuple[Any, str | None], list[Any]] = {}
    for key, name in name_of.items():
        path = change[key].path if key in change else None
        groups.setdefault((name, path), []).append(key)
    return groups


def names_to_load(now: Plan, before: Plan, in_use: set[Any]) -> list[Any]:
    """Which keyed models to preload: those whose older version is in use. Else the only model."""
    if not now.routed:
        return [ONLY]
    return [name for name in now.models if before.handler.cohort(name) in in_use]


class RefreshPolicy:
    """Loads one version at a time; the changes wanted meanwhile follow together, the newest of each model.

    A failed load leaves the serving version in place and is tried again later, unless newer changes replace it; models
    that it does not name follow without it.

    Args:
        waits: whether to take updates in order of arrival, whatever their timestamps: the thread must follow its own
            input.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.serving = Version()
        self.scan_due: float | None = None
        """When to look for files next, in seconds; None: not looked yet."""
        self._waits = waits
        self._latest: ModelUpdate | None = None
        self._wanted: Change = {}
        """What does not serve yet."""
        self._loading: Change = {}
        """What of it is being loaded."""
        self._failed: Change = {}
        """What of it waits until it is due, since it could not be loaded."""
        self._failures = 0
        self._due = 0.0

    def is_newer(self, update: ModelUpdate) -> bool:
        """Whether an update has a value that differs from the latest one, and is no older."""
        if update.value is None or self._latest is None:
            return update.value is not None
        return update.value != self._latest.value and (self._waits or update.timestamp >= self._latest.timestamp)

    def request(self, update: ModelUpdate, change: Change) -> None:
        """Asks for the change of an update, if it is news."""
        if self.note(update):
            self._wanted = {**self._wanted, **change}
            if not self._loading:
                self._serve(self.serving)

    def note(self, update: ModelUpdate) -> bool:
        """Records an update; returns whether it is news."""
        is_newer = self.is_newer(update)
        if is_newer:
            self._latest = update
        return is_newer

    def initial(self, change: Change) -> Version:
        """The version to begin with; the serving one if the change has just failed."""
        return self.serving if change == self._failed else self.serving.after(change)

    def started(self, version: Version, update: ModelUpdate, change: Change | None, now: float) -> None:
        """Records the initial version, which may be older than the wanted one."""
        self.note(update)
        missing = dict(self.serving.after(change or {}).models - version.models)
        self._wanted = {**self._wanted, **(change or {}), **missing}
        self._serve(version)
        if missing and missing != self._failed:
            self._loading = missing
            self.failed(now, 0)

    def is_due(self, now: float) -> bool:
        """Whether there may be a version to load now."""
        return len(self._wanted) > len(self._failed) or (bool(self._failed) and now >= self._due)

    def next(self, now: float) -> Version | None:
        """The version to load now, if any. Report the result through ``loaded`` or ``failed``."""
        if not self.is_due(now):
            return None
        self._loading = {name: one for name, one in self._wanted.items() if name not in self._failed} or self._failed
        return self.serving.after(self._loading)

    def loaded(self) -> None:
        """Records that the version was loaded and serves."""
        self._serve(self.serving.after(self._loading))

    def failed(self, now: float, seconds: float) -> None:
        """Records that the load failed after ``seconds``; what was wanted meanwhile is loaded at once."""
        failed = _still(self._loading, self._wanted)
        if failed:
            self._failed, self._failures = {**self._failed, **failed}, self._failures + 1
            pause = backoff(self._failures, _SHORTEST_PAUSE_SECS, _LONGEST_PAUSE_SECS)
            self._due = now + max(pause, seconds * _RARITY)
        self._serve(self.serving)

    def _serve(self, version: Version) -> None:
        """Forgets what serves with this version, and failures of what is no longer wanted."""
        self.serving, self._loading = version, {}
        self._wanted = dict(self._wanted.items() - version.models)
        self._failed = _still(self._failed, self._wanted)
        self._failures = self._failures if self._failed else 0


def _still(change: Change, wanted: Change) -> Change:
    """What of a change is wanted still."""
    return {name: one for name, one in change.items() if wanted.get(name) == one}
