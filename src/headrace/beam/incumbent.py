"""Understands handlers that were written for ``apache_beam.ml.inference``; the runtime finds this by name."""

from __future__ import annotations

from typing import Any

from apache_beam.ml.inference import base

from headrace.core.keyed import KeyedModelHandler, KeyModelMapping

_WRAPPERS = (base._PreProcessingModelHandler, base._PostProcessingModelHandler, base._PrebatchedModelHandler)


def adopt(handler: Any) -> Any:
    """A handler of Beam's without its wrappers, and Beam's KeyedModelHandler as ours.

    Beam's groups predictions by key, so that they no longer stand in the order of their batch, and its wrappers hide
    the metrics of the handler within. Whatever a subclass does itself is left to it.
    """
    while isinstance(handler, _WRAPPERS):
        handler = handler._base
    if not isinstance(handler, base.KeyedModelHandler) or not _is_untouched(type(handler)):
        return handler
    if handler._single_model:
        return KeyedModelHandler(handler._unkeyed)
    keys_of: dict[Any, list[Any]] = {}
    for key, cohort in handler._key_to_id_map.items():
        keys_of.setdefault(cohort, []).append(key)
    mappings = [KeyModelMapping(keys, handler._id_to_mh_map[cohort]) for cohort, keys in keys_of.items()]
    return KeyedModelHandler(mappings, handler._max_models_per_worker_hint)


def _is_untouched(cls: type) -> bool:
    methods = ("load_model", "run_inference")
    return all(getattr(cls, method) is getattr(base.KeyedModelHandler, method) for method in methods)
