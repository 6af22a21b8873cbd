"""Understands handlers that were written for ``apache_beam.ml.inference``; the runtime finds this by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.ml.inference import base

from headrace.core.keyed import KeyedModelHandler, mappings_of

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
        if theirs._single_model:
            super().__init__(theirs._unkeyed)
        else:
            mappings = mappings_of(theirs._key_to_id_map, theirs._id_to_mh_map)
            super().__init__(mappings, theirs._max_models_per_worker_hint)
        self._theirs = theirs

    def get_metrics_namespace(self) -> str:
        return str(self._theirs.get_metrics_namespace())

    def get_resource_hints(self) -> dict[str, Any]:
        return dict(self._theirs.get_resource_hints())

    def get_num_bytes(self, batch: Sequence[tuple[Any, Any]]) -> int:
        return int(self._theirs.get_num_bytes(batch))

    def set_environment_vars(self) -> None:
        self._theirs.set_environment_vars()
        super().set_environment_vars()

    def override_metrics(self, metrics_namespace: str = "") -> bool:
        """Beam's own answer with mappings means that it counts itself, which is for the runner to do here."""
        if type(self._theirs).override_metrics is base.KeyedModelHandler.override_metrics and self.cohorts:
            return False
        return bool(self._theirs.override_metrics(metrics_namespace))
