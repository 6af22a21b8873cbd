"""What happened, as facts; whoever wants them is an Observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.core.result import Stage


@dataclass(frozen=True)
class ModelLoaded:
    """A model has come into this process's memory."""

    model: str
    """The model's name within its transform; empty where there is only one."""
    seconds: float
    bytes: int
    """Growth of the process's proportional set size (PSS) while it loaded; 0 where it shrank."""


@dataclass(frozen=True)
class BatchCompleted:
    """The model answered a batch."""

    model: str
    examples: int
    bytes: int
    """Size of the batch's data, as the handler's ``get_num_bytes`` counts it."""
    seconds: float
    """Time within ``run_inference``, its lazy result included."""


@dataclass(frozen=True)
class BatchFailed:
    """A batch did not go through as a whole (some of its elements may have, later, on their own)."""

    model: str
    examples: int
    error: BaseException


@dataclass(frozen=True)
class ElementFailed:
    """An element has become a dead letter."""

    stage: Stage
    error: BaseException


Event = ModelLoaded | BatchCompleted | BatchFailed | ElementFailed


class Observer(Protocol):
    """Is told what happened, on the thread of the bundle that it happened to."""

    def on_event(self, event: Event) -> None:
        """Takes note; must neither block nor raise."""
        ...
