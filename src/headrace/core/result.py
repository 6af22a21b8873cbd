"""What comes out: Beam's PredictionResult for users, Predictions and Failures between the rooms."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class PredictionResult(NamedTuple):
    """One example with what the model said about it."""

    example: Any
    """The input, as the model was fed it."""
    inference: Any
    """The model's answer for this example."""
    model_id: str | None = None
    """Which model answered: its path or URI where it has one."""


class ModelMetadata(NamedTuple):
    """Names a model to be loaded in place of the current one."""

    model_id: str
    """Path or URI from which the model is loaded."""
    model_name: str
    """Human-readable name, the prefix of the model's metrics."""


class Stage(Enum):
    """The three kinds of operation that an element goes through."""

    PREPROCESSING = "preprocessing"
    INFERENCE = "inference"
    POSTPROCESSING = "postprocessing"


class Predictions(NamedTuple):
    """Good outcomes of some elements, side by side.

    One object for many: an object for each row would cost as much as the rest of the row's way.
    """

    tags: list[Any]
    """What the adapter gave with each element, untouched."""
    values: list[Any]
    """The prediction for each, postprocessed; with its key where the elements have keys."""


@dataclass(frozen=True)
class Failure:
    """A bad outcome: one element that one operation could not do."""

    tag: Any
    """What the adapter gave with the element, untouched."""
    stage: Stage
    index: int
    """Which operation of its stage, counted from 0 in the order in which they run."""
    element: Any
    """What the failed operation was given: for inference the example, with its key if it has one."""
    error: Exception
    whole_batch: bool = False
    """Whether the element is a batch itself."""

    @property
    def record(self) -> tuple[Any, tuple[type[Exception], str, list[str]]]:
        """As Beam's dead letters hold it: a failed inference is a batch, of this one element."""
        in_batch = self.stage is Stage.INFERENCE and not self.whole_batch
        return ([self.element] if in_batch else self.element), self.triple

    @property
    def triple(self) -> tuple[type[Exception], str, list[str]]:
        """The error as Beam's dead letters hold it: (type, repr, lines of the traceback)."""
        error = self.error
        return (
            _importable(type(error)),
            repr(error),
            traceback.format_exception(type(error), error, error.__traceback__),
        )


def _importable(cls: type[Exception]) -> type[Exception]:
    """The class, or its first base that another process can import: a dead letter must survive being pickled."""
    return next(base for base in cls.__mro__ if _found_by_name(base))


def _found_by_name(cls: type) -> bool:
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


Outcome = Predictions | Failure
