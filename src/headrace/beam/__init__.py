"""RunInference on Apache Beam, with every public name of ``apache_beam.ml.inference.base``.

A pipeline moves over by changing ``from apache_beam.ml.inference.base import`` to ``from headrace.beam import``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.beam.oom import OOMProtectedFn
from headrace.beam.transform import RunInference, RunInferenceDLQ
from headrace.core.errors import RateLimitExceeded
from headrace.core.handler import ExampleT, KeyT, ModelHandler, ModelT, PostProcessT, PredictionT, PreProcessT
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping, KeyModelPathMapping, MaybeKeyedModelHandler
from headrace.core.remote import RemoteModelHandler
from headrace.core.result import ModelMetadata, PredictionResult

if TYPE_CHECKING:
    from apache_beam.ml.inference.base import load_model_status

__all__ = [
    "ExampleT",
    "KeyModelMapping",
    "KeyModelPathMapping",
    "KeyT",
    "KeyedModelHandler",
    "MaybeKeyedModelHandler",
    "ModelHandler",
    "ModelMetadata",
    "ModelT",
    "OOMProtectedFn",
    "PostProcessT",
    "PreProcessT",
    "PredictionResult",
    "PredictionT",
    "RateLimitExceeded",
    "RemoteModelHandler",
    "RunInference",
    "RunInferenceDLQ",
    "load_model_status",
]


def __getattr__(name: str) -> Any:
    """Loads ``load_model_status`` on first use: Headrace does not need it, and Beam's module imports torch."""
    if name != "load_model_status":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from apache_beam.ml.inference.base import load_model_status  # noqa: PLC0415 - takes seconds

    return load_model_status
