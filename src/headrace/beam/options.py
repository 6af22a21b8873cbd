"""The keyword arguments of RunInference, for type checkers; its docstring says what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import apache_beam as beam

    from headrace.core.budget import Budget
    from headrace.core.config import BatchingConfig, CacheConfig, RetryConfig
    from headrace.runtime.prepare import Placement


class WatchOptions(TypedDict, total=False):
    """Those that go with ``watch_model_pattern``."""

    interval: float
    stop_timestamp: Any


class InferenceOptions(WatchOptions, total=False):
    """All of them."""

    model_metadata_pcoll: beam.PCollection | None
    watch_model_pattern: str | None
    model_identifier: str | None
    use_model_manager: bool
    model_manager_args: dict[str, Any] | None
    monitoring_transform: beam.PTransform | None
    placement: Placement
    batching: BatchingConfig | None
    retry: RetryConfig | None
    isolate: bool
    fallback: Any
    cache: str | CacheConfig | None
    budget: Budget | None
