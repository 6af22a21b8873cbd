"""The steps of a row-by-row run: reading rows, and writing predictions and dead letters into parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.core.config import BatchingConfig
from headrace.core.errors import as_type_name
from headrace.core.result import Caught, DeadLetter
from headrace.failures.device import device_loss
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.files import Source
from headrace.jobs.json_lines import JsonEncodeError
from headrace.jobs.parts import OutputPart, PartWriter
from headrace.jobs.pipes import as_name
from headrace.jobs.reading import read_rows
from headrace.jobs.resume import load_done
from headrace.jobs.retry import read_dead_letters
from headrace.jobs.row_ranges import RowRanges, place_at
from headrace.jobs.rows import BrokenLine, Placed, Row, fields_of, place_of, row_of

cancelled: set[str] = set()
"""The output folders of this process's cancelled jobs."""


class CancelledError(Exception):
    """The job was cancelled."""


def refuse_if_cancelled(folder: str) -> None:
    """Raises CancelledError if the job with this output folder was cancelled."""
    if folder in cancelled:
        raise CancelledError("cancelled")


class RunSteps(NamedTuple):
    """The steps that the drivers, ``Loop`` and ``BeamPipeline``, apply to each row."""

    reader: RowReader
    """Reads sources into elements."""
    handler: Any
    """Wrapped to run over those elements."""
    batching: BatchingConfig
    predictions: Writer
    dead_letters: Writer
    skipped: Writer
    """Receives the inputs of operations that skipped them."""


class RowReader:
    """Reads files into rows."""

    def __init__(self, numbers: Mapping[str, type], folder: str, *, resume: bool) -> None:
        self.numbers = dict(numbers)
        self._folder = folder
        self._resume = resume

    def read(self, index: int, source: Source) -> Iterator[Any]:
        """Yields rows, one at a time; an unreadable line is an element that fails in its first operation.

        Args:
            index: of the source, counted from 0.
            source: the file.

        Raises:
            OSError: the file cannot be read.
            CancelledError: the job was cancelled.
        """
        for row in self._reading(index, source):
            if cancelled:
                refuse_if_cancelled(self._folder)
            yield row

    def _reading(self, index: int, source: Source) -> Iterator[Any]:
        try:
            yield from self.rows(index, source)
        except Exception as error:
            raise OSError(f"cannot read {as_name(source.path)} as {source.format}: {error}") from error

    def rows(self, index: int, source: Source) -> Iterator[Any]:
        """The rows of the source with that index."""
        rows = read_dead_letters(source) if source.letters else read_rows(source, self.numbers)
        return _placed(rows, index, load_done(self._folder)) if self._resume else rows


def _placed(rows: Iterator[Row | BrokenLine], source: int, done: RowRanges) -> Iterator[Placed]:
    """The rows that are not yet done, with their places."""
    # The ranges of missing rows are sorted; the last one has no end, so that ``next`` never fails.
    missing = done.missing(source)
    start, stop = next(missing)
    for number, row in enumerate(rows):
        if number >= stop:
            start, stop = next(missing)
        if number >= start:
            yield Placed(row, place_at(source, number))


class Writer:
    """Writes one part in each bundle; the parts of failed bundles do not count."""

    def __init__(self, folder: str, *, resume: bool) -> None:
        self._folder = folder
        self._resume = resume
        self._part: Any = None

    def begin(self) -> None:
        """Starts a bundle's part."""
        self._part = self._new_part()

    def write(self, item: Any) -> None:
        """Writes a prediction, a ``DeadLetter``, or a skipped element."""
        raise NotImplementedError

    def _new_part(self) -> Any:
        raise NotImplementedError

    def finish(self) -> list[OutputPart]:
        """Closes the part; an empty list if nothing was written."""
        part, self._part = self._part and self._part.finish(), None
        return [part] if part else []

    def abandon(self) -> None:
        """Closes the part of a failed bundle durably if the run is resumable: its rows count."""
        if self._part is not None and self._resume:
            self._part.finish()


class _LineWriter(Writer):
    """Writes a part of JSON lines."""

    predictions: bool | None

    def _new_part(self) -> Any:
        writer = DurablePartWriter if self._resume else PartWriter
        return writer(self._folder, predictions=self.predictions)

    def place(self, element: Any) -> int:
        """The place of an element's first row; 0 unless the run is resumable: other parts record no places."""
        return place_of(element) if self._resume else 0

    def _write(self, line: dict[str, Any], what: str, place: int) -> None:
        assert self._part is not None, "written outside a bundle; this is a bug, please report it"
        self._part.write(line, what, place)


class DeadLetterWriter(_LineWriter):
    """Writes dead letters."""

    predictions = False

    def write(self, letter: Any) -> None:
        """Writes a line."""
        self.write_row(row_of(letter.element), letter, self.place(letter.element))

    def write_row(self, row: Row | BrokenLine, letter: Any, place: int) -> None:
        """Writes a line for a row that failed, alone or in a block."""
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


def unwritten(error: JsonEncodeError, model_id: str | None) -> DeadLetter:
    """The dead letter of a prediction that cannot be written.

    Raises:
        Exception: the cause is a lost device rather than the prediction.
    """
    cause = error.__cause__ or error
    if device_loss(cause) is not None:
        raise cause
    return DeadLetter(
        stage="writing",
        index=0,
        key=None,
        element=None,
        error_type=as_type_name(cause),
        message=f"the prediction cannot be written as JSON: {cause}",
        traceback="".join(Caught.of(cause).lines),
        attempts=1,
        model_id=model_id,
    )


class WriterWithLetters(Writer):
    """Writes predictions, and dead letters for rows whose prediction cannot be written."""

    def __init__(self, folder: str, keep: tuple[str, ...] | None, *, resume: bool) -> None:
        super().__init__(folder, resume=resume)
        self._keep = keep
        self._letters = DeadLetterWriter(folder, resume=resume)

    def begin(self) -> None:
        """Starts both parts."""
        super().begin()
        self._letters.begin()

    def finish(self) -> list[OutputPart]:
        """Closes both parts."""
        return [*super().finish(), *self._letters.finish()]

    def abandon(self) -> None:
        """Closes both parts of a failed bundle durably if the run is resumable."""
        super().abandon()
        self._letters.abandon()


class PredictionWriter(WriterWithLetters, _LineWriter):
    """Writes (row, prediction) pairs."""

    predictions = True

    def write(self, pair: tuple[Any, Any]) -> None:
        """Writes a line."""
        element, prediction = pair
        row: Any = element if type(element) is dict else row_of(element)
        kept = row if self._keep is None else {name: row.get(name) for name in self._keep}
        fields, place = fields_of(prediction), self.place(element)
        try:
            self._write({**kept, **fields}, "predictions", place)
        except JsonEncodeError as error:
            self._letters.write_row(row, unwritten(error, fields.get("model_id")), place)


class SkippedWriter(_LineWriter):
    """Records which rows were skipped, so that they count as done."""

    predictions = None

    def write(self, element: Any) -> None:
        """Writes an empty line."""
        self._write({}, "skipped", self.place(element))
