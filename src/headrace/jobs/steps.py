"""The steps of a run row by row: reading, and writing of predictions and dead letters into parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from headrace.core.config import BatchingConfig
from headrace.core.errors import as_type_name
from headrace.core.result import Caught
from headrace.failures.device import device_loss
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.files import Source
from headrace.jobs.json_lines import NoJsonError
from headrace.jobs.output import PartWriter
from headrace.jobs.pipes import as_name
from headrace.jobs.reading import read_rows
from headrace.jobs.resume import load_done
from headrace.jobs.retry import read_letters
from headrace.jobs.row_ranges import RowRanges, place_at
from headrace.jobs.rows import BrokenLine, Placed, Row, fields_of, place_of, row_of

cancelled: set[str] = set()
"""The folders of the jobs of this process that have been cancelled."""


class CancelledError(Exception):
    """The job was cancelled."""


def refuse_if_cancelled(folder: str) -> None:
    """Raises CancelledError if the job that uses this folder was cancelled."""
    if folder in cancelled:
        raise CancelledError("cancelled")


class RunSteps(NamedTuple):
    """How rows go through."""

    read: beam.DoFn
    """Sources, each behind its index, to elements."""
    handler: Any
    """Made to run over those."""
    batching: BatchingConfig
    write: beam.DoFn
    """Predictions to names of parts."""
    write_letters: beam.DoFn
    """Dead letters to names of parts."""
    write_skipped: beam.DoFn
    """What operations were given for rows that they skipped, to names of parts."""


class Read(beam.DoFn):
    """Files to rows."""

    def __init__(self, numbers: Mapping[str, type], folder: str, *, resume: bool) -> None:
        self.numbers = dict(numbers)
        self._folder = folder
        self._resume = resume

    def process(self, source: tuple[Any, ...]) -> Iterator[Any]:
        """Rows, one at a time; a line that cannot be read is left to the first operation on rows to refuse."""
        for row in self._reading(source[0], Source(*source[1:])):
            if cancelled:
                refuse_if_cancelled(self._folder)
            yield row

    def _reading(self, index: int, source: Source) -> Iterator[Any]:
        try:
            yield from self.rows(index, source)
        except Exception as error:
            raise OSError(f"cannot read {as_name(source.path)} as {source.format}: {error}") from error

    def rows(self, index: int, source: Source) -> Iterator[Any]:
        """Of the source with that index."""
        rows = read_letters(source) if source.letters else read_rows(source, self.numbers)
        return _placed(rows, index, load_done(self._folder)) if self._resume else rows


def _placed(rows: Iterator[Row | BrokenLine], source: int, done: RowRanges) -> Iterator[Placed]:
    """The rows that are not done yet, with their places."""
    missing = done.missing(source)
    start, stop = next(missing)
    for number, row in enumerate(rows):
        if number >= stop:
            start, stop = next(missing)
        if number >= start:
            yield Placed(row, place_at(source, number))


class WriteParts(beam.DoFn):
    """Writes a part in each bundle and gives its name; of a bundle that fails, nobody hears the name."""

    def __init__(self, folder: str, *, resume: bool) -> None:
        self._folder = folder
        self._resume = resume
        self._part: Any = None

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Ends it."""
        part, self._part = self._part and self._part.finish(), None
        if part is not None:
            yield WindowedValue(json.dumps(part), MIN_TIMESTAMP, [GlobalWindow()])

    def teardown(self) -> None:
        """Keeps what a bundle that failed has done, if anything is to be kept."""
        if self._part is not None and self._resume:
            self._part.finish()


class _WriteLines(WriteParts):
    """Writes a part of lines."""

    predictions: bool | None

    def start_bundle(self) -> None:
        """Begins a part."""
        writer = DurablePartWriter if self._resume else PartWriter
        self._part = writer(self._folder, predictions=self.predictions)

    def place(self, element: Any) -> int:
        """Of the first row of an element; matters only where parts are to tell it."""
        return place_of(element) if self._resume else 0

    def _write(self, line: dict[str, Any], what: str, place: int) -> None:
        assert self._part is not None, "written outside a bundle; this is a bug, please report it"
        self._part.write(line, what, place)


class WriteLetters(_WriteLines):
    """Writes dead letters."""

    predictions = False

    def process(self, letter: Any) -> None:
        """Writes a line."""
        self.write_row(row_of(letter.element), letter, self.place(letter.element))

    def write_row(self, row: Row | BrokenLine, letter: Any, place: int) -> None:
        """Writes a line for a row that is, or is among, what failed."""
        is_broken = isinstance(row, BrokenLine)
        line = {
            "row": row.row if isinstance(row, BrokenLine) else row,
            "stage": "reading" if is_broken else letter.stage,
            "operation": letter.index,
            "error_type": letter.error_type,
            "message": letter.message,
            "traceback": letter.traceback,
            "attempts": getattr(row, "attempts", 0) + letter.attempts,
            "model_id": letter.model_id,
        }
        self._write(line, f"{line['stage']} {letter.error_type}", place)


def unwritten(error: NoJsonError, model_id: str | None) -> beam.Row:
    """What is known of a prediction that cannot be written, as of other dead letters.

    Raises:
        Exception: not the prediction is to blame, but a device that is lost.
    """
    cause = error.__cause__ or error
    if device_loss(cause) is not None:
        raise cause
    return beam.Row(
        stage="writing",
        index=0,
        error_type=as_type_name(cause),
        message=f"the prediction cannot be written as JSON: {cause}",
        traceback="".join(Caught.of(cause).lines),
        attempts=1,
        model_id=model_id,
    )


class WithLetters(WriteParts):
    """Writes predictions, and dead letters of rows whose prediction cannot be written."""

    def __init__(self, folder: str, keep: tuple[str, ...] | None, *, resume: bool) -> None:
        super().__init__(folder, resume=resume)
        self._keep = keep
        self._letters = WriteLetters(folder, resume=resume)

    def start_bundle(self) -> None:
        """Begins the parts."""
        super().start_bundle()
        self._letters.start_bundle()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Ends them."""
        yield from super().finish_bundle()
        yield from self._letters.finish_bundle()

    def teardown(self) -> None:
        """As of its class."""
        super().teardown()
        self._letters.teardown()


class WritePredictions(WithLetters, _WriteLines):
    """Writes (row, prediction) pairs."""

    predictions = True

    def process(self, pair: tuple[Any, Any]) -> None:
        """Writes a line."""
        element, prediction = pair
        row: Any = element if type(element) is dict else row_of(element)
        kept = row if self._keep is None else {name: row.get(name) for name in self._keep}
        fields, place = fields_of(prediction), self.place(element)
        try:
            self._write({**kept, **fields}, "predictions", place)
        except NoJsonError as error:
            self._letters.write_row(row, unwritten(error, fields.get("model_id")), place)


class WriteSkipped(_WriteLines):
    """Notes which rows were skipped: they are done, and counted."""

    predictions = None

    def process(self, element: Any) -> None:
        """Writes a line, with nothing in it."""
        self._write({}, "skipped", self.place(element))
