"""Dead letters as rows: one PCollection of all that is known of each failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from headrace.core.result import DeadLetter, Stage

_FIELDS: list[tuple[str, Any]] = [
    ("stage", str),
    ("index", int),
    ("key", Any),
    ("element", Any),
    ("error_type", str),
    ("message", str),
    ("traceback", str),
    ("attempts", int),
    ("model_id", str | None),
    ("event_time", Timestamp),
]
_ROW = RowTypeConstraint.from_fields(_FIELDS)


class DeadLetterRows(beam.PTransform):
    """Turns a ``RunInferenceDLQ``, Headrace's or Beam's, into one PCollection of ``beam.Row``.

    Each row keeps the timestamp and the windows of its dead letter. Its fields:

    - ``stage``: ``"preprocessing"``, ``"inference"`` or ``"postprocessing"``.
    - ``index``: which function of the stage, counted from 0 in the order in which they run.
    - ``key``: of a keyed element; else None.
    - ``element``: what the operation was given: in inference the one element, not a batch of one (Beam's: the batch).
    - ``error_type``: the name of the error's class, with its module unless it is built in.
    - ``message``: the error's own words.
    - ``traceback``: one text of several lines.
    - ``attempts``: how often the element was tried, at least 1.
    - ``model_id``: the path, URI or name of the model; None if it is not known.
    - ``event_time``: the timestamp of the element, a ``Timestamp`` of Beam's.
    """

    def expand(self, letters: Any) -> beam.PCollection:
        """A step for each operation, and a Flatten."""
        return dead_letters_of_each(letters) | beam.Flatten()

    def _extract_input_pvalues(self, letters: Any) -> tuple[Any, tuple[beam.PCollection, ...]]:
        """Beam asks a transform that takes more than PCollections where in there they are."""
        return letters, tuple(failed for _, _, failed in _operations(letters))


def dead_letters_of_each(letters: Any) -> tuple[beam.PCollection, ...]:
    """What ``DeadLetterRows`` flattens: a PCollection for each operation.

    Before a Flatten Beam's own runner gathers all that comes from a stage until the stage ends; what consumes these is
    part of the stage.
    """
    return tuple(
        failed | f"{stage.value}-{index}" >> beam.Map(_row, stage, index).with_output_types(_ROW)
        for stage, index, failed in _operations(letters)
    )


def _operations(letters: Any) -> Iterator[tuple[Stage, int, beam.PCollection]]:
    for index, failed in enumerate(letters.failed_preprocessing):
        yield Stage.PREPROCESSING, index, failed
    yield Stage.INFERENCE, 0, letters.failed_inferences
    for index, failed in enumerate(letters.failed_postprocessing):
        yield Stage.POSTPROCESSING, index, failed


def _row(record: Any, stage: Stage, index: int, event_time: Any = beam.DoFn.TimestampParam) -> beam.Row:
    return beam.Row(**vars(DeadLetter.of(record, stage, index)), event_time=event_time)
