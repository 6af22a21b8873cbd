"""Results: Beam's PredictionResult for users; Predictions, Skipped and Failure between rooms."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

from headrace.core.errors import as_type_name, causes
from headrace.core.transferable import encodable_text, html_table, short_repr

_LONGEST_MESSAGE = 500
"""Most characters of an error's message where a failure is printed."""
_OURS = f'  File "{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}{os.sep}'
"""How the line of a traceback begins that shows a frame of this package."""


class PredictionResult(NamedTuple):
    """One example with the model's prediction."""

    example: Any
    """The input, as the handler received it."""
    inference: Any
    """The model's prediction for this example."""
    model_id: str | None = None
    """The model that answered: its path or URI if it has one."""

    def _repr_html_(self) -> str:
        return html_table("prediction", [(name, short_repr(value)) for name, value in self._asdict().items()])


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
    """Successful outcomes of several elements.

    One object for many: one for each row would cost as much as the rest of the row's processing.
    """

    tags: list[Any]
    """The adapter's tag of each element, unchanged."""
    values: list[Any]
    """The prediction for each element, postprocessed; with its key if elements have keys."""
    fallback: str | None = None
    """The fallback that answered, by its model's path or a name; None: the model itself."""


@dataclass(frozen=True)
class Skipped:
    """Outcomes of elements without output: an operation returned ``headrace.SKIP`` for them."""

    stage: Stage
    index: int
    """Which operation of its stage, counted from 0."""
    tags: list[Any]
    """The adapter's tag of each element, unchanged."""
    elements: list[Any]
    """The operation's input for each element; if it ran in a host, what was sent there; for inference on an element
    that is a batch, the batch."""


class Caught(NamedTuple):
    """A caught exception, with its traceback as text.

    The traceback itself would keep alive whatever its frames refer to: the batch, and the model.
    """

    error: BaseException
    lines: list[str]
    """Lines of its traceback, with each run of this package's frames folded into one."""

    @classmethod
    def of(cls, error: BaseException) -> Caught:
        """Removes the traceback from an exception and from those that led to it."""
        lines = [*_folded(traceback.format_exception(type(error), error, error.__traceback__))]
        for link in causes(error, suppressed=True):
            BaseException.__setattr__(link, "__traceback__", None)  # works for frozen dataclasses, too
        return cls(error, lines)


def _folded(lines: Iterable[str]) -> Iterator[str]:
    for is_ours, some in groupby(lines, lambda line: line.startswith(_OURS)):
        frames = list(some)
        yield from [f"  ... {len(frames)} frame{'s' * (len(frames) > 1)} of headrace\n"] if is_ours else frames


class ErrorRecord(tuple[type[BaseException], str, list[str]]):
    """A failure in Beam's form: (error type, its repr, traceback lines); more is in attributes.

    It equals the plain tuple and unpacks like it. Pickling preserves the attributes.
    """

    attempts: int
    """How often the element was tried; a search for a batch's bad elements tries it repeatedly."""
    model_id: str | None
    """The model: its path or URI if the handler has one, else its name if keys select the model."""
    key: Any
    """The key of a keyed element; else None."""
    source: Any
    """The original element, before any preprocessing, if still available; else None."""
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
        """Makes a record from a triple; the keyword arguments become attributes."""
        record = super().__new__(cls, triple)
        record.attempts, record.model_id, record.key = attempts, model_id, key
        record.source, record.wrapped = source, wrapped
        return record


@dataclass(frozen=True, repr=False)
class Failure:
    """The outcome of an element whose operation failed; printed, it says which, where and why."""

    tag: Any
    """The adapter's tag of the element, unchanged."""
    stage: Stage
    index: int
    """Which operation of its stage, counted from 0 in the order in which they run."""
    element: Any
    """The failed operation's input: for inference the example, with its key if it has one."""
    caught: Caught
    whole_batch: bool = False
    """Whether the element is a batch itself."""
    attempts: int = 1
    """How often the element was tried; this and the fields below are those of ``ErrorRecord``."""
    model_id: str | None = None
    key: Any = None
    source: Any = None

    def __str__(self) -> str:
        """The stage, the element, the error; then the key, the model and the number of tries, where they matter."""
        function = f" function {self.index}" if self.stage is not Stage.INFERENCE else ""
        more = [
            f"key {_in_a_line(short_repr(self.key))}" if self.key is not None else "",
            f"model {self.model_id}" if self.model_id else "",
            f"{self.attempts} attempts" if self.attempts > 1 else "",
        ]
        what = f"{self.stage.value}{function} failed for {_in_a_line(short_repr(self.element))}: {_said(self.error)}"
        return f"{what} ({', '.join(filter(None, more))})" if any(more) else what

    def __repr__(self) -> str:
        return f"<Failure: {self}>"

    def _repr_html_(self) -> str:
        rows = [("element", short_repr(self.element)), ("error", _said(self.error)), ("attempts", f"{self.attempts}")]
        if self.key is not None:
            rows.insert(0, ("key", short_repr(self.key)))
        if self.model_id:
            rows.append(("model", self.model_id))
        return html_table(f"{self.stage.value} failed", rows, ("traceback", "".join(self.caught.lines)))

    @property
    def error(self) -> BaseException:
        """The exception; its traceback is in ``caught.lines``."""
        return self.caught.error

    @property
    def record(self) -> tuple[Any, ErrorRecord]:
        """The dead letter in Beam's form: (element, (error type, its repr, traceback lines)).

        After a failed inference, the element is in a list, as a batch of one.
        """
        in_batch = self.stage is Stage.INFERENCE and not self.whole_batch
        error, lines = self.caught
        triple = _importable(type(error)), _repr(error), lines
        more = {name: getattr(self, name) for name in ("attempts", "model_id", "key", "source")}
        return ([self.element] if in_batch else self.element), ErrorRecord(triple, wrapped=in_batch, **more)


@dataclass(frozen=True)
class DeadLetter:
    """All that is known of a failure, in plain values; fields mean the same as in ``beam.DeadLetterRows``."""

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
        """Reads a ``Failure.record``, or a plain tuple of Beam's."""
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
    """The error's message, which only the traceback contains verbatim; else its repr."""
    found = (line for line in reversed(lines) if line.startswith(f"{name}: "))
    return next(found, described).removeprefix(f"{name}: ").rstrip("\n")


def _repr(error: BaseException) -> str:
    """The error's repr, or its class name if even that fails."""
    try:
        return repr(error)
    except Exception:
        return f"{type(error).__qualname__}(...)"


def _said(error: BaseException) -> str:
    """An error's class and, shortened, its message, in a line."""
    try:
        message = f"{error}"
    except Exception:
        message = "..."
    return _in_a_line(encodable_text(f"{as_type_name(error)}: {message[:_LONGEST_MESSAGE]}"))


def _in_a_line(text: str) -> str:
    return " ".join(text.split())


def _importable(cls: type[BaseException]) -> type[BaseException]:
    """The class, or its first base that another process can import: dead letters are pickled."""
    return next(base for base in cls.__mro__ if _found_by_name(base))


def _found_by_name(cls: type) -> bool:
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


Outcome = Predictions | Failure | Skipped
