"""Headrace: RunInference for Apache Beam, rebuilt.

The names here load on first use; importing headrace loads neither Beam nor any machine-learning framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.answer import SKIP
    from headrace.core.config import BatchingConfig, Budget, CacheConfig, PlacementConfig, Price, RetryConfig
    from headrace.core.conversion import text_length
    from headrace.core.engine import EngineModelHandler
    from headrace.core.errors import (
        BudgetError,
        ConfigurationError,
        DeviceLostError,
        EndpointAnswerError,
        EndpointError,
        FallbackError,
        HeadraceError,
        HostDiedError,
        HostError,
        HostStartError,
        MissingExtraError,
        ModelMemoryError,
        NotYetHonouredWarning,
        PredictionCountError,
        RateLimitExceeded,
        RowCostError,
        UnknownKeyError,
        UnsupportedError,
    )
    from headrace.core.handler import HandlerCard, ModelHandler
    from headrace.core.keyed import (
        KeyedModelHandler,
        KeyModelMapping,
        KeyModelPathMapping,
        MaybeKeyedModelHandler,
    )
    from headrace.core.model_files import KnownModel, ModelFile
    from headrace.core.remote import ElementFailure, ElementRetry, RemoteModelHandler
    from headrace.core.request_context import report_generation, report_rate_limit, report_usage
    from headrace.core.result import ErrorRecord, Failure, ModelMetadata, PredictionResult, Stage
    from headrace.core.sources import with_sources
    from headrace.jobs.files import read_files
    from headrace.jobs.predict_table import predict_table
    from headrace.jobs.quote import quote
    from headrace.local.predict import predict

_HOME = {
    name: module
    for module, names in {
        "core.answer": "SKIP",
        "core.config": "BatchingConfig Budget CacheConfig PlacementConfig Price RetryConfig",
        "core.conversion": "text_length",
        "core.engine": "EngineModelHandler",
        "core.errors": (
            "BudgetError ConfigurationError DeviceLostError EndpointAnswerError EndpointError FallbackError "
            "HeadraceError HostDiedError HostError HostStartError MissingExtraError ModelMemoryError "
            "NotYetHonouredWarning PredictionCountError RateLimitExceeded RowCostError UnknownKeyError UnsupportedError"
        ),
        "core.handler": "HandlerCard ModelHandler",
        "core.keyed": "KeyModelMapping KeyModelPathMapping KeyedModelHandler MaybeKeyedModelHandler",
        "core.model_files": "KnownModel ModelFile",
        "core.remote": "ElementFailure ElementRetry RemoteModelHandler",
        "core.request_context": "report_generation report_rate_limit report_usage",
        "core.result": "ErrorRecord Failure ModelMetadata PredictionResult Stage",
        "core.sources": "with_sources",
        "jobs.files": "read_files",
        "jobs.predict_table": "predict_table",
        "jobs.quote": "quote",
        "local.predict": "predict",
    }.items()
    for name in names.split()
}
"""The module of each name."""

__version__ = "0.1.0"

__all__ = [
    "SKIP",
    "BatchingConfig",
    "Budget",
    "BudgetError",
    "CacheConfig",
    "ConfigurationError",
    "DeviceLostError",
    "ElementFailure",
    "ElementRetry",
    "EndpointAnswerError",
    "EndpointError",
    "EngineModelHandler",
    "ErrorRecord",
    "Failure",
    "FallbackError",
    "HandlerCard",
    "HeadraceError",
    "HostDiedError",
    "HostError",
    "HostStartError",
    "KeyModelMapping",
    "KeyModelPathMapping",
    "KeyedModelHandler",
    "KnownModel",
    "MaybeKeyedModelHandler",
    "MissingExtraError",
    "ModelFile",
    "ModelHandler",
    "ModelMemoryError",
    "ModelMetadata",
    "NotYetHonouredWarning",
    "PlacementConfig",
    "PredictionCountError",
    "PredictionResult",
    "Price",
    "RateLimitExceeded",
    "RemoteModelHandler",
    "RetryConfig",
    "RowCostError",
    "Stage",
    "UnknownKeyError",
    "UnsupportedError",
    "predict",
    "predict_table",
    "quote",
    "read_files",
    "report_generation",
    "report_rate_limit",
    "report_usage",
    "text_length",
    "with_sources",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
