"""Private attributes of Beam's handlers, by Beam's names, for classes derived from Headrace's handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

ClassT = TypeVar("ClassT", bound=type)


class Alias:
    """Reads and sets another attribute of the same object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else getattr(owner, self._name)

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner, self._name, value)


BEAMS_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "_DelegatingHandler": {
        "_unkeyed": "unkeyed",
        "_max_models_per_worker_hint": "max_models",
        "_id_to_mh_map": "cohorts",
        "_key_to_id_map": "cohort_of",
    },
    "SklearnModelHandler": {"_model_inference_fn": "_inference_fn"},
    "OnnxModelHandlerNumpy": {"_model_inference_fn": "_inference_fn"},
    "XGBoostModelHandler": {"_model_state": "_model_uri"},
    "_HuggingFaceModelHandler": {"_model_config_args": "_load_model_args"},
    "HuggingFacePipelineModelHandler": {"_model": "_model_uri"},
    "_VLLMModelHandler": {"_model_name": "_model_uri"},
}
"""Headrace's names by Beam's, where they differ, for each class. All others are the same."""


def with_beams_attributes(cls: ClassT) -> ClassT:
    """Adds the attributes of a class that the table lists."""
    for beams, ours in BEAMS_ATTRIBUTES[cls.__qualname__].items():
        setattr(cls, beams, Alias(ours))
    return cls
