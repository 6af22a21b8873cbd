"""What a thread is at, told by its stack: functions are marked when they are defined, and cost nothing when called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import CodeType, FrameType
from typing import NamedTuple, Protocol, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class Phase(str, Enum):
    """What a run's time goes to."""

    LOADING = "loading"
    READING = "reading"
    PREPROCESSING = "preprocessing"
    BATCH = "waiting for a batch"
    """For rows that are being read: there is nothing else to do."""
    MODEL = "model"
    """In ``run_inference``, in this process or in a host."""
    TRANSFER = "between processes"
    """A host decodes a batch, or encodes its predictions."""
    ANSWERS = "waiting for answers"
    """Of an endpoint."""
    QUOTA = "waiting for the quota"
    """Of an endpoint: requests wait that it would refuse now."""
    POSTPROCESSING = "postprocessing"
    WRITING = "writing"


class Look(NamedTuple):
    """What something besides this process's threads is at."""

    phases: Sequence[Phase] = ()
    gauges: Mapping[str, float] = {}
    processes: Sequence[int] = ()
    """Ids of those that work for this one."""


class Sampled(Protocol):
    """Something that a sampler looks at, on its own thread."""

    def look(self) -> Look:
        """What it is at now."""
        ...


_marked: dict[CodeType, Phase | None] = {}


def during(phase: Phase | None) -> Callable[[FunctionT], FunctionT]:
    """Marks a function or a generator function, which it returns unchanged: a thread that runs it is in this phase.

    None: in no phase, even if a marked function has called it.
    """

    def mark(function: FunctionT) -> FunctionT:
        _marked[function.__code__] = phase
        return function

    return mark


def phase_of(frame: FrameType | None) -> Phase | None:
    """The phase of the innermost marked function of a stack; None: it has none."""
    while frame is not None:
        if frame.f_code in _marked:
            return _marked[frame.f_code]
        frame = frame.f_back
    return None
