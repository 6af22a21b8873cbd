"""Stands in for vLLM in tests: its server, and the asynchronous engine's interface, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams, VLLMValidationError

__all__ = ["AsyncEngineArgs", "PoolingParams", "SamplingParams"]


@dataclass
class AsyncEngineArgs:
    model: str
    tokenizer: str | None = None
    runner: str = "auto"
    max_model_len: int = 10
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class PoolingParams:
    dimensions: int | None = None
    use_activation: bool | None = None
    task: str | None = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.task not in ("embed", "classify"):
            raise VLLMValidationError(f"no task {self.task}")
