"""The dead letters that RunInference returns besides its predictions, and the same as rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from headrace.core.result import DeadLetter, Stage

_ROW = RowTypeConstraint.from_fields([*get_type_hints(DeadLetter).items(), ("event_time", Timestamp)])


class RunInferenceDLQ(NamedTuple):
    """The dead letters of a RunInference, by the operation that failed.

    A record is ``(element, (error type, its repr, lines of the traceback))``. In ``failed_inferences`` the element is a
    batch of one, ``[element]``, unless elements are batches themselves.
    """

    failed_inferences: beam.PCollection
    failed_preprocessing: Sequence[beam.PCollection]
    """One for each preprocessing function, in the order in which they run."""
    failed_postprocessing: Sequence[beam.PCollection]
    """One for each postprocessing function, in the order in which they run."""


def dead_letters_of(
    inference: beam.PCollection, before: Sequence[beam.PCollection], after: Sequence[beam.PCollection]
) -> RunInferenceDLQ:
    """The dead letters of the stages; an instance of Beam's class, too, if Beam's module is loaded.

    ``MLTransform``, for one, takes no other.
    """
    theirs = sys.modules.get("apache_beam.ml.inference.base")
    cls = RunInferenceDLQ if theirs is None else _of_both(theirs.RunInferenceDLQ)
    return cls(inference, before, after)


@cache
def _of_both(theirs: type) -> type[RunInferenceDLQ]:
    attributes = {"__slots__": (), "__doc__": RunInferenceDLQ.__doc__, "__module__": __name__}
    return type(RunInferenceDLQ.__name__, (RunInferenceDLQ, theirs), attributes)


class DeadLetterRows(beam.PTransform):
    """Turns a ``RunInferenceDLQ``, Headrace's or Beam's, into one PCollection of ``beam.Row``.

    Each row keeps the timestamp and the windows of its dead letter. Its fields:

    - ``stage``: ``"preprocessing"``, ``"inference"`` or ``"postprocessing"``.
    - ``index``: which function of the stage, counted from 0 in the order in which they run.
    - ``key``: of a keyed element; else None.
    - ``element``: the operation's input; for inference the element, not a batch of one (Beam's: the batch).
    - ``error_type``: the name of the error's class, with its module unless it is built in.
    - ``message``: the error's message.
    - ``traceback``: one text of several lines.
    - ``attempts``: how often the element was tried, at least 1.
    - ``model_id``: the path, URI or name of the model; None if it is not known.
    - ``event_time``: the element's timestamp, a Beam ``Timestamp``.
    """

    def expand(self, dead_letters: Any) -> beam.PCollection:
        """A Map for each operation, and a Flatten."""
        rows = [
            failed | f"{stage.value}-{index}" >> beam.Map(_row, stage, index).with_output_types(_ROW)
            for stage, index, failed in _by_operation(dead_letters)
        ]
        return rows | beam.Flatten()

    def _extract_input_pvalues(self, dead_letters: Any) -> tuple[Any, tuple[beam.PCollection, ...]]:
        """Tells Beam which PCollections the input contains: it is not a PCollection itself."""
        return dead_letters, tuple(failed for _, _, failed in _by_operation(dead_letters))


def _by_operation(dead_letters: Any) -> Iterator[tuple[Stage, int, beam.PCollection]]:
    for index, failed in enumerate(dead_letters.failed_preprocessing):
        yield Stage.PREPROCESSING, index, failed
    yield Stage.INFERENCE, 0, dead_letters.failed_inferences
    for index, failed in enumerate(dead_letters.failed_postprocessing):
        yield Stage.POSTPROCESSING, index, failed


def _row(record: Any, stage: Stage, index: int, event_time: Any = beam.DoFn.TimestampParam) -> beam.Row:
    return beam.Row(**vars(DeadLetter.of(record, stage, index)), event_time=event_time)
