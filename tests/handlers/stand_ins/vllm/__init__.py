"""Stands in for vLLM in tests: its server, and the asynchronous engine's interface, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams

__all__ = ["AsyncEngineArgs", "SamplingParams"]


@dataclass
class AsyncEngineArgs:
    model: str
    tokenizer: str | None = None
    max_model_len: int = 10
    extra: dict[str, Any] = field(default_factory=dict)
