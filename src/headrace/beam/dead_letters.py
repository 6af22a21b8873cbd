"""Dead letters as rows: one PCollection of everything known about each failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from headrace.core.result import DeadLetter, Stage

_ROW = RowTypeConstraint.from_fields([*get_type_hints(DeadLetter).items(), ("event_time", Timestamp)])


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
        return rows_by_operation(dead_letters) | beam.Flatten()

    def _extract_input_pvalues(self, dead_letters: Any) -> tuple[Any, tuple[beam.PCollection, ...]]:
        """Tells Beam which PCollections the input contains: it is not a PCollection itself."""
        return dead_letters, tuple(failed for _, _, failed in _by_operation(dead_letters))


def rows_by_operation(dead_letters: Any) -> tuple[beam.PCollection, ...]:
    """What ``DeadLetterRows`` flattens: a PCollection of rows for each operation.

    Beam's own runner keeps a stage's whole output in memory before a Flatten; it fuses a consumer of one of these
    PCollections into the stage.
    """
    return tuple(
        failed | f"{stage.value}-{index}" >> beam.Map(_row, stage, index).with_output_types(_ROW)
        for stage, index, failed in _by_operation(dead_letters)
    )


def _by_operation(dead_letters: Any) -> Iterator[tuple[Stage, int, beam.PCollection]]:
    for index, failed in enumerate(dead_letters.failed_preprocessing):
        yield Stage.PREPROCESSING, index, failed
    yield Stage.INFERENCE, 0, dead_letters.failed_inferences
    for index, failed in enumerate(dead_letters.failed_postprocessing):
        yield Stage.POSTPROCESSING, index, failed


def _row(record: Any, stage: Stage, index: int, event_time: Any = beam.DoFn.TimestampParam) -> beam.Row:
    return beam.Row(**vars(DeadLetter.of(record, stage, index)), event_time=event_time)
