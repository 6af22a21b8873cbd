"""Adapts what is written for ``apache_beam.ml.inference``; the runtime finds this module by its entry point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.ml.inference import base

from headrace.core.keyed import KeyedModelHandler, mappings_of
from headrace.core.result import PredictionResult

_WRAPPERS = (base._PreProcessingModelHandler, base._PostProcessingModelHandler, base._PrebatchedModelHandler)


def adopt(handler: Any) -> Any:
    """Unwraps a handler of Beam's, and turns Beam's KeyedModelHandler into Headrace's.

    Beam's wrappers hide the metrics of the handler that they wrap, and its KeyedModelHandler returns predictions
    grouped by key instead of in the order of the batch. A subclass with a ``load_model`` or ``run_inference`` of its
    own stays as it is.
    """
    while isinstance(handler, _WRAPPERS):
        handler = handler._base
    methods = ("load_model", "run_inference")
    keyed = isinstance(handler, base.KeyedModelHandler)
    if keyed and all(getattr(type(handler), name) is getattr(base.KeyedModelHandler, name) for name in methods):
        return _BeamKeyedModelHandler(handler)
    return handler


class _BeamKeyedModelHandler(KeyedModelHandler[Any, Any, Any, Any]):
    """Runs like Headrace's KeyedModelHandler, and describes itself as Beam's, or a subclass of it, does."""

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
        """Beam's own True, given with mappings, means that the handler counts itself; here the runtime counts."""
        if type(self._theirs).override_metrics is base.KeyedModelHandler.override_metrics and self.cohorts:
            return False
        return bool(self._theirs.override_metrics(metrics_namespace))


class EitherResult(PredictionResult, base.PredictionResult):
    """Stands for Headrace's and for Beam's PredictionResult in type hints; has no instances.

    Handlers, Headrace's or Beam's, declare one of the two; the functions that take what they predict may be annotated
    with the other, since the two are equal and have the same fields.
    """

    __slots__ = ()

    example: Any
    inference: Any
    model_id: str | None
