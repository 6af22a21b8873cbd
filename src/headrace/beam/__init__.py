"""RunInference on Apache Beam, with every public name of ``apache_beam.ml.inference.base``.

A pipeline moves over by changing ``from apache_beam.ml.inference.base import`` to ``from headrace.beam import``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.beam.oom import OOMProtectedFn
from headrace.core.errors import RateLimitExceeded
from headrace.core.handler import ExampleT, KeyT, ModelHandler, ModelT, PostProcessT, PredictionT, PreProcessT
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping, KeyModelPathMapping, MaybeKeyedModelHandler
from headrace.core.remote import RemoteModelHandler
from headrace.core.result import ModelMetadata, PredictionResult

if TYPE_CHECKING:
    from apache_beam.ml.inference.base import load_model_status

    from headrace.beam.dead_letters import DeadLetterRows
    from headrace.beam.transform import RunInference, RunInferenceDLQ
    from headrace.beam.watch import WatchFilePattern

_HOME = {
    "DeadLetterRows": "headrace.beam.dead_letters",
    "RunInference": "headrace.beam.transform",
    "RunInferenceDLQ": "headrace.beam.transform",
    "WatchFilePattern": "headrace.beam.watch",
    "load_model_status": "apache_beam.ml.inference.base",
}
"""What needs Beam, loaded on first use: model hosts import from this room, and should not import Beam for it."""

__all__ = [
    "DeadLetterRows",
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
    "WatchFilePattern",
    "load_model_status",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
