"""What comes out: Beam's PredictionResult for users, Predictions and Failures between the rooms."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from headrace.core.errors import as_type_name


class PredictionResult(NamedTuple):
    """One example with what the model said about it."""

    example: Any
    """The input, as the handler was given it."""
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
class Skipped:
    """Outcomes of elements that are to have no output: an operation gave ``headrace.SKIP`` for them."""

    stage: Stage
    index: int
    """Which operation of its stage, as of a ``Failure``."""
    tags: list[Any]
    """What the adapter gave with each element, untouched."""
    elements: list[Any]
    """What the operation was given for each, or, where it runs in a host, what was sent there; of an inference on an
    element that is a batch, the batch."""


class Caught(NamedTuple):
    """An exception that was caught, with its traceback as text.

    The traceback itself would keep alive whatever the frames in it hold: the batch, and the model.
    """

    error: BaseException
    lines: list[str]
    """Of its traceback."""

    @classmethod
    def of(cls, error: BaseException) -> Caught:
        """Takes the traceback off an exception and off those that led to it."""
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        link: BaseException | None = error
        while link is not None and link.__traceback__ is not None:
            BaseException.__setattr__(link, "__traceback__", None)  # also where its class is a frozen dataclass
            link = link.__cause__ if link.__cause__ is not None else link.__context__
        return cls(error, lines)


class ErrorRecord(tuple[type[BaseException], str, list[str]]):
    """What is known of a failure: (error type, its repr, lines of the traceback), as in Beam, and more as attributes.

    It is equal to the plain tuple and unpacks like it. Pickled, it keeps its attributes.
    """

    attempts: int
    """How often the element was tried: a search for the bad elements of a batch tries it again and again."""
    model_id: str | None
    """Which model: its path or URI where the handler tells, else its name where the key decides on the model."""
    key: Any
    """Of a keyed element; else None."""
    source: Any
    """The element as it came, before any preprocessing, where it was still at hand; else None."""
    wrapped: bool
    """Whether the dead letter holds ``[element]``, a batch of one, in place of the element."""

    def __new__(
        cls,
        triple: Iterable[Any],
        *,
        attempts: int = 1,
        model_id: str | None = None,
        key: Any = None,
        source: Any = None,
        wrapped: bool = False,
    ) -> ErrorRecord:
        """Makes one of a triple; the rest becomes attributes."""
        record = super().__new__(cls, triple)
        record.attempts, record.model_id, record.key = attempts, model_id, key
        record.source, record.wrapped = source, wrapped
        return record


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
    caught: Caught
    whole_batch: bool = False
    """Whether the element is a batch itself."""
    attempts: int = 1
    """How often the element was tried; see ``ErrorRecord``, as for what follows."""
    model_id: str | None = None
    key: Any = None
    source: Any = None

    @property
    def error(self) -> BaseException:
        """The exception; its traceback is in ``caught.lines``."""
        return self.caught.error

    @property
    def record(self) -> tuple[Any, ErrorRecord]:
        """As Beam's dead letters hold it: (element, (error type, its repr, lines of the traceback)).

        A failed inference is a batch, of this one element.
        """
        in_batch = self.stage is Stage.INFERENCE and not self.whole_batch
        error, lines = self.caught
        triple = _importable(type(error)), _repr(error), lines
        error_record = ErrorRecord(
            triple,
            attempts=self.attempts,
            model_id=self.model_id,
            key=self.key,
            source=self.source,
            wrapped=in_batch,
        )
        return ([self.element] if in_batch else self.element), error_record


@dataclass(frozen=True)
class DeadLetter:
    """All that is known of a failure, in plain values; the field's meanings are those of ``beam.DeadLetterRows``."""

    stage: str
    index: int
    key: Any
    element: Any
    error_type: str
    message: str
    traceback: str
    attempts: int
    model_id: str | None

    @classmethod
    def of(cls, record: tuple[Any, Any], stage: Stage, index: int) -> DeadLetter:
        """Reads a ``Failure.record``, or one of Beam's, which are plain tuples."""
        element, error = record
        error_type, described, lines = error
        name = as_type_name(error_type)
        return cls(
            stage=stage.value,
            index=index,
            key=getattr(error, "key", None),
            element=element[0] if getattr(error, "wrapped", False) else element,
            error_type=name,
            message=_message(name, described, lines),
            traceback="".join(lines),
            attempts=getattr(error, "attempts", 1),
            model_id=getattr(error, "model_id", None),
        )


def _message(name: str, described: str, lines: list[str]) -> str:
    """The error's own words, which of its record only the traceback holds plainly; else its repr."""
    beginning = f"{name}: "
    for line in reversed(lines):
        if line.startswith(beginning):
            return line.removeprefix(beginning).rstrip("\n")
    return described


def _repr(error: BaseException) -> str:
    """The error's own words; its class where even they fail."""
    try:
        return repr(error)
    except Exception:
        return f"{type(error).__qualname__}(...)"


def _importable(cls: type[BaseException]) -> type[BaseException]:
    """The class, or its first base that another process can import: a dead letter must survive being pickled."""
    return next(base for base in cls.__mro__ if _found_by_name(base))


def _found_by_name(cls: type) -> bool:
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


Outcome = Predictions | Failure | Skipped
