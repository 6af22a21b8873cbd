"""What a thread is at, told by its stack: functions are marked when they are defined, and cost nothing when called."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import CodeType, FrameType
from typing import TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class Phase(str, Enum):
    """What a run's time goes to."""

    LOADING = "loading"
    READING = "reading"
    PREPROCESSING = "preprocessing"
    MODEL = "model"
    """In ``run_inference``, in this process or in a host."""
    ANSWERS = "waiting for answers"
    """Of an endpoint; for its quota, too."""
    POSTPROCESSING = "postprocessing"
    WRITING = "writing"


_marked: dict[CodeType, Phase] = {}


def during(phase: Phase) -> Callable[[FunctionT], FunctionT]:
    """Marks a function or a generator function, which it returns unchanged: a thread that runs it is in this phase."""

    def mark(function: FunctionT) -> FunctionT:
        _marked[function.__code__] = phase
        return function

    return mark


def phase_of(frame: FrameType | None) -> Phase | None:
    """The phase of the innermost marked function of a stack; None: it has none."""
    while frame is not None:
        if (phase := _marked.get(frame.f_code)) is not None:
            return phase
        frame = frame.f_back
    return None
