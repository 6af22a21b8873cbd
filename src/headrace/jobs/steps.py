"""The steps of a run: reading blocks and rows, and writing predictions, dead letters and skips into parts."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from headrace.core.config import BatchingConfig
from headrace.core.errors import as_type_name
from headrace.core.result import Caught, DeadLetter, PredictionResult
from headrace.failures.device import device_loss
from headrace.jobs.blocks import Block, BlockRow
from headrace.jobs.column_blocks import cut_by_time, fitted
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.files import Source
from headrace.jobs.json_lines import JsonEncodeError, as_line
from headrace.jobs.output_batches import OutputLine, OutputRow, batch_of_block, encoded_row
from headrace.jobs.parts import OutputPart, PartWriter
from headrace.jobs.pipes import as_name, is_pipe
from headrace.jobs.prefetch import prefetch
from headrace.jobs.reading import placed, read_blocks
from headrace.jobs.records import BrokenLine
from headrace.jobs.resume import load_done
from headrace.jobs.retry import read_dead_letters
from headrace.jobs.row_ranges import RowRanges
from headrace.jobs.rows import block_row_of, fields_of

cancelled: set[str] = set()
"""The output folders of this process's cancelled jobs."""


class CancelledError(Exception):
    """The job was cancelled."""


def refuse_if_cancelled(folder: str) -> None:
    """Raises CancelledError if the job with this output folder was cancelled."""
    if folder in cancelled:
        raise CancelledError("cancelled")


class RunSteps(NamedTuple):
    """The steps that the drivers, ``Loop`` and ``BeamPipeline``, apply to each element: a row, or a block of rows."""

    reader: BlockReader
    """Reads sources into elements."""
    handler: Any
    """Wrapped to run over those elements."""
    batching: BatchingConfig
    predictions: Writer
    dead_letters: Writer
    skipped: Writer
    """Receives the inputs of operations that skipped them."""


class BlockReader:
    """Reads files into blocks of rows, and hands on their rows, or the blocks if the model takes columns.

    Args:
        numbers: the types of the number columns in CSV files.
        folder: of the output's parts.
        names: the model's columns; None if it takes rows.
        resume: whether to leave out the rows that earlier runs finished.
    """

    def __init__(
        self, numbers: Mapping[str, type], folder: str, names: tuple[str, ...] | None, *, resume: bool
    ) -> None:
        self._numbers = dict(numbers)
        self._folder = folder
        self._names = names
        self._resume = resume

    def read(self, index: int, source: Source) -> Iterator[Any]:
        """Yields rows or blocks; an unreadable line is an element that fails in its first operation.

        Args:
            index: of the source, counted from 0.
            source: the file.

        Raises:
            OSError: the file cannot be read.
            CancelledError: the job was cancelled.
        """
        with closing(self._reading(index, source)) as elements:
            for element in elements:
                if cancelled:
                    refuse_if_cancelled(self._folder)
                yield element

    def _reading(self, index: int, source: Source) -> Generator[Any, None, None]:
        try:
            blocks = self._blocks(index, source)
            if is_pipe(source.path):  # not read ahead: a run that failed would wait for the next row
                for block in blocks:
                    yield from block.each()
                return
            with closing(prefetch(blocks)) as coming:
                if self._names is not None:
                    yield from cut_by_time(coming) if self._resume else coming
                    return
                for block in coming:
                    yield from block.each()
        except Exception as error:
            raise OSError(f"cannot read {as_name(source.path)} as {source.format}: {error}") from error

    def _blocks(self, index: int, source: Source) -> Iterator[Block]:
        done = load_done(self._folder) if self._resume else RowRanges()
        if source.letters:
            return placed(read_dead_letters(source), source, index, done)
        blocks = read_blocks(source, index, self._numbers, done, self._names or ())
        return blocks if self._names is None else fitted(blocks, all_finite=source.format == "csv")


class Writer:
    """Writes one part in each bundle; the parts of failed bundles do not count."""

    predictions: bool | None

    def __init__(self, folder: str, keep: tuple[str, ...] | None = None, *, resume: bool) -> None:
        self._folder = folder
        self._keep = keep
        self._resume = resume
        self._part: Any = None

    def begin(self) -> None:
        """Starts a bundle's part."""
        writer = DurablePartWriter if self._resume else PartWriter
        self._part = writer(self._folder, predictions=self.predictions, keep=self._keep)

    def write(self, items: Sequence[Any]) -> None:
        """Writes predictions, ``DeadLetter``s, or skipped elements."""
        raise NotImplementedError

    def finish(self) -> list[OutputPart]:
        """Closes the part; an empty list if nothing was written."""
        part, self._part = self._part and self._part.finish(), None
        return [part] if part else []

    def abandon(self) -> None:
        """Closes the part of a failed bundle durably if the run is resumable: its rows count."""
        if self._part is not None and self._resume:
            self._part.finish()


class DeadLetterWriter(Writer):
    """Writes dead letters."""

    predictions = False

    def write(self, items: Sequence[Any]) -> None:
        """Writes a line for each row of the letters' elements, which are rows or blocks."""
        for letter in items:
            element = letter.element
            for row in element.each() if isinstance(element, Block) else [block_row_of(element)]:
                self.write_row(row, letter)

    def write_row(self, row: BlockRow, letter: Any) -> None:
        """Writes a line for a row that failed, alone or in a block."""
        is_broken = isinstance(row.row, BrokenLine)
        line = {
            "row": row.row.row if isinstance(row.row, BrokenLine) else row.row,
            "stage": "reading" if is_broken else letter.stage,
            "operation": letter.index,
            "error_type": letter.error_type,
            "message": letter.message,
            "traceback": letter.traceback,
            "attempts": getattr(row.row, "attempts", 0) + letter.attempts,
            "model_id": letter.model_id,
        }
        what = f"{line['stage']} {letter.error_type}"
        self._part.write_line(OutputLine(row.place, as_line(line)[:-1].decode()), what, str(letter.message))


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


class PredictionWriter(Writer):
    """Writes predictions, and dead letters for rows whose prediction cannot be written."""

    predictions = True

    def __init__(self, folder: str, keep: tuple[str, ...] | None, *, resume: bool) -> None:
        super().__init__(folder, keep, resume=resume)
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

    def write(self, items: Sequence[Any]) -> None:
        """Writes (row, prediction) pairs, or results whose examples are blocks."""
        rows: list[OutputRow] = []
        for item in items:
            if isinstance(item, PredictionResult):
                self._write_block(item.example, item.inference, item.model_id)
                continue
            element, prediction = item
            row, fields = element if type(element) is BlockRow else block_row_of(element), fields_of(prediction)
            try:
                rows.append(encoded_row(row, fields, self._keep))
            except JsonEncodeError as error:
                self._letters.write_row(row, unwritten(error, fields.get("model_id")))
        if rows:
            self._part.write_rows(rows, "predictions")

    def _write_block(self, block: Block, predictions: Any, model_id: str | None) -> None:
        """Writes rows; if that fails, halves the block until only the rows that cannot be written are left."""
        try:
            batch = batch_of_block(block, self._keep, predictions, model_id)
        except JsonEncodeError as error:
            middle = len(block) // 2
            if middle:
                self._write_block(block[:middle], predictions[:middle], model_id)
                self._write_block(block[middle:], predictions[middle:], model_id)
                return
            if isinstance(predictions, list):
                model_id = fields_of(predictions[0]).get("model_id")
            self._letters.write_row(next(block.each()), unwritten(error, model_id))
        else:
            self._part.write_batch(block.place, batch)


class SkippedWriter(Writer):
    """Records which rows were skipped, so that they count as done."""

    predictions = None

    def write(self, items: Sequence[Any]) -> None:
        """Writes an empty line for each row."""
        for element in items:
            self._part.write_line(OutputLine(block_row_of(element).place, "{}"), "skipped")
