"""Reads updates of models, and builds the spec of a session in which they replace the handlers' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.errors import ConfigurationError, UnknownKeyError
from headrace.runtime.plan import ONLY, Handler, Plan, Refreshed
from headrace.runtime.spec import SessionSpec

Change: TypeAlias = dict[Any, Refreshed]
"""The models to replace: by key if the key selects the model, else under ``ONLY``."""


class Version(NamedTuple):
    """All models that replace the handlers' own; equal if the models are."""

    models: frozenset[tuple[Any, Refreshed]] = frozenset()
    """The items of a ``Change``."""

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
    if hasattr(value, "model_id") and hasattr(value, "model_name"):
        if plan.routed:
            raise ConfigurationError(
                f"{plan.name} has models by key: they are refreshed with a list of KeyModelPathMapping, not with "
                f"{value!r}."
            )
        return {ONLY: Refreshed(str(value.model_id), str(value.model_name))} if value.model_id else {}
    if isinstance(value, list | tuple) and all(hasattr(one, "keys") and hasattr(one, "update_path") for one in value):
        if not plan.routed:
            raise ConfigurationError(
                f"{plan.name} has one model: it is refreshed with a ModelMetadata, not with {value!r}."
            )
        return _by_key(value, plan)
    raise ConfigurationError(
        f"a model is refreshed with a ModelMetadata or a list of KeyModelPathMapping, not with {value!r}."
    )


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
    """The spec of a session with this version's models.

    Args:
        version: the models.
        fresh: makes the spec with the handlers' original models; each call returns new handlers.

    Raises:
        Exception: a handler does not accept the path.
    """
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
    keyed = spec.plan.handler
    shared = set(spec.shared)
    handlers: dict[Any, Handler] = {}
    name_of: dict[Any, Any] = {}
    refreshed: Change = {}
    for (model, path), keys in _groups(keyed.cohort_of, change).items():
        name = model if model in keys else keys[0]
        handlers[name] = keyed.cohorts[model] if name == model else fresh().plan.handler.cohorts[model]
        name_of.update(dict.fromkeys(keys, name))
        if model in shared:
            shared.add(name)
        if path is not None:
            handlers[name].update_model_path(path)
            refreshed[name] = change[name]
    keyed.cohorts, keyed.cohort_of = handlers, name_of
    plan = replace(spec.plan, models=handlers, refreshed=refreshed)
    return replace(spec, plan=plan, shared=frozenset(shared & set(handlers)))


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
