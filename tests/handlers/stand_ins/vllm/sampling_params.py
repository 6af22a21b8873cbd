"""The parameters that tests use, checked as vLLM checks them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class VLLMValidationError(Exception):
    """As vLLM has it: no ValueError."""


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    json: str | dict | None = None
    choice: list[str] | None = None

    def __post_init__(self) -> None:
        if (self.json is None) == (self.choice is None):
            raise VLLMValidationError("You must use one kind of structured outputs constraint.")


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    max_tokens: int | None = 16
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if not self.max_tokens or self.max_tokens < 1:
            raise VLLMValidationError(f"max_tokens must be at least 1, got {self.max_tokens}.")

    @property
    def choice(self) -> Any:
        return self.structured_outputs and self.structured_outputs.choice
