"""Understands handlers that were written for ``apache_beam.ml.inference``; the runtime finds this by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.ml.inference import base

from headrace.core.keyed import KeyedModelHandler, KeyModelMapping

_WRAPPERS = (base._PreProcessingModelHandler, base._PostProcessingModelHandler, base._PrebatchedModelHandler)


def adopt(handler: Any) -> Any:
    """A handler of Beam's without its wrappers, and Beam's KeyedModelHandler as ours.

    Beam's gives predictions grouped by key, no longer in the order of their batch, and its wrappers hide the metrics of
    the handler within. A subclass that loads or infers in a way of its own is left to it.
    """
    while isinstance(handler, _WRAPPERS):
        handler = handler._base
    methods = ("load_model", "run_inference")
    keyed = isinstance(handler, base.KeyedModelHandler)
    if keyed and all(getattr(type(handler), name) is getattr(base.KeyedModelHandler, name) for name in methods):
        return _Adopted(handler)
    return handler


class _Adopted(KeyedModelHandler[Any, Any, Any, Any]):
    """Beam's KeyedModelHandler, or a subclass of it, whose answers about itself hold."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(theirs._unkeyed if theirs._single_model else _mappings(theirs), _limit(theirs))
        self._theirs = theirs

    def get_metrics_namespace(self) -> str:
        return str(self._theirs.get_metrics_namespace())

    def get_resource_hints(self) -> dict[str, Any]:
        return dict(self._theirs.get_resource_hints())

    def get_num_bytes(self, batch: Sequence[tuple[Any, Any]]) -> int:
        return int(self._theirs.get_num_bytes(batch))

    def set_environment_vars(self) -> None:
        self._theirs.set_environment_vars()

    def override_metrics(self, metrics_namespace: str = "") -> bool:
        """Beam's own answer with mappings means that it counts itself, which is for the runner to do here."""
        if type(self._theirs).override_metrics is base.KeyedModelHandler.override_metrics and self.cohorts:
            return False
        return bool(self._theirs.override_metrics(metrics_namespace))


def _mappings(theirs: Any) -> list[KeyModelMapping[Any, Any, Any, Any]]:
    keys_of: dict[Any, list[Any]] = {}
    for key, cohort in theirs._key_to_id_map.items():
        keys_of.setdefault(cohort, []).append(key)
    return [KeyModelMapping(keys, theirs._id_to_mh_map[cohort]) for cohort, keys in keys_of.items()]


def _limit(theirs: Any) -> int | None:
    return None if theirs._single_model else theirs._max_models_per_worker_hint
