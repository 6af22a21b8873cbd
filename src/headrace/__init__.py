"""Headrace: RunInference for Apache Beam, rebuilt.

The names here load on first use; importing headrace loads neither Beam nor any machine-learning framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.answer import SKIP
    from headrace.core.config import BatchingConfig, Budget, CacheConfig, PlacementConfig, Price, RetryConfig
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
    from headrace.core.lengths import text_length
    from headrace.core.model_files import KnownModel, ModelFile
    from headrace.core.remote import ElementFailure, ElementRetry, RemoteModelHandler
    from headrace.core.request_context import report_generation, report_rate_limit, report_usage
    from headrace.core.result import ErrorRecord, Failure, ModelMetadata, PredictionResult, Stage
    from headrace.core.sources import with_sources
    from headrace.jobs.files import read_files
    from headrace.jobs.predict_table import predict_table
    from headrace.local.predict import predict

_HOME = {
    "SKIP": "core.answer",
    "BatchingConfig": "core.config",
    "Budget": "core.config",
    "BudgetError": "core.errors",
    "CacheConfig": "core.config",
    "ConfigurationError": "core.errors",
    "DeviceLostError": "core.errors",
    "ElementFailure": "core.remote",
    "ElementRetry": "core.remote",
    "EndpointAnswerError": "core.errors",
    "EndpointError": "core.errors",
    "EngineModelHandler": "core.engine",
    "ErrorRecord": "core.result",
    "Failure": "core.result",
    "FallbackError": "core.errors",
    "HandlerCard": "core.handler",
    "HeadraceError": "core.errors",
    "HostDiedError": "core.errors",
    "HostError": "core.errors",
    "HostStartError": "core.errors",
    "KeyModelMapping": "core.keyed",
    "KeyModelPathMapping": "core.keyed",
    "KeyedModelHandler": "core.keyed",
    "KnownModel": "core.model_files",
    "MaybeKeyedModelHandler": "core.keyed",
    "MissingExtraError": "core.errors",
    "ModelFile": "core.model_files",
    "ModelHandler": "core.handler",
    "ModelMemoryError": "core.errors",
    "ModelMetadata": "core.result",
    "NotYetHonouredWarning": "core.errors",
    "PlacementConfig": "core.config",
    "PredictionCountError": "core.errors",
    "PredictionResult": "core.result",
    "Price": "core.config",
    "RateLimitExceeded": "core.errors",
    "RemoteModelHandler": "core.remote",
    "RetryConfig": "core.config",
    "Stage": "core.result",
    "UnknownKeyError": "core.errors",
    "UnsupportedError": "core.errors",
    "predict": "local.predict",
    "predict_table": "jobs.predict_table",
    "read_files": "jobs.files",
    "report_generation": "core.request_context",
    "report_rate_limit": "core.request_context",
    "report_usage": "core.request_context",
    "text_length": "core.lengths",
    "with_sources": "core.sources",
}

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
    "Stage",
    "UnknownKeyError",
    "UnsupportedError",
    "predict",
    "predict_table",
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
