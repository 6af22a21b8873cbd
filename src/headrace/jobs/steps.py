"""The steps of a run: reading blocks and rows, and writing predictions, dead letters and skips into parts."""

from __future__ import annotations

import sys
from collections.abc import Container, Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from headrace.core.errors import BudgetError
from headrace.core.result import DeadLetter, Failure, Outcome, Predictions
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.files import Source
from headrace.jobs.flow import FirstRows, cut_by_time, prefetch
from headrace.jobs.input_share import following
from headrace.jobs.job import CancelledError, Job, cancelled, refuse_if_cancelled
from headrace.jobs.json_lines import JsonEncodeError
from headrace.jobs.letter_order import LetterOrder
from headrace.jobs.letters import LetterLines, unwritten
from headrace.jobs.output_batches import (
    SCALARS,
    Encode,
    OutputLine,
    OutputRows,
    batch_of_block,
    columns_of_bytes,
    encoded,
    encoded_record,
    encoded_without_bytes,
    rows_together,
)
from headrace.jobs.parts import BundleParts, PartWriter
from headrace.jobs.pipes import as_name, is_pipe
from headrace.jobs.reading import placed, read_blocks
from headrace.jobs.resume import load_done
from headrace.jobs.retry import read_dead_letters
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import Block, BlockRow, blocks_of, with_lengths
from headrace.rows.examples import answer_of
from headrace.rows.exploded import PREDICTION, exploded
from headrace.rows.fitting import Fit, fitted
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.spec import SessionSpec


class RunSteps(NamedTuple):
    """What both drivers, ``Loop`` and ``BeamPipeline``, do with sources."""

    spec: SessionSpec
    """Of the handler, wrapped for rows or blocks."""
    reader: BlockReader
    writer: OutcomeWriter

    def bundle(self, bundle: AnyBundle) -> SourceBundle:
        """Starts on a bundle of sources with a new bundle of the runtime."""
        return SourceBundle(bundle, self.reader, self.writer)


class SourceBundle:
    """Reads sources into a bundle of the runtime, and writes its outcomes into parts; used by one thread."""

    def __init__(self, bundle: AnyBundle, reader: BlockReader, writer: OutcomeWriter) -> None:
        self._bundle = bundle
        self._reader = reader
        self._writer = writer
        writer.begin()

    def run(self, index: int, source: Source) -> None:
        """Runs the rows of a source, or some of them if the bundle's first rows all fail.

        Args:
            index: of the source, counted from 0.
            source: the file.

        Raises:
            CancelledError: the job was cancelled.
            Exception: the file cannot be read, a part cannot be written, or the model cannot be loaded.
        """
        for _ in self.batches(index, source):
            pass

    def batches(self, index: int, source: Source) -> Generator[None, None, None]:
        """As ``run``, pausing whenever outcomes were written; a caller that ends it then may throw a CancelledError."""
        try:
            yield from self._batches(index, source)
        except CancelledError:
            if self._writer.paid:
                with suppress(BudgetError):  # of what was not sent
                    self._writer.write(self._bundle.finish())
            raise

    def _batches(self, index: int, source: Source) -> Iterator[None]:
        add, write, reader = self._bundle.add, self._writer.write, self._reader
        first = self._writer.first_rows
        if first.were_last:
            return
        with closing(reader.read(index, source)) as blocks:
            for element, place in chain.from_iterable(map(reader.elements, first.noted(blocks))):
                if cancelled:
                    refuse_if_cancelled(reader.folder)
                if outcomes := add(element, place):
                    write(outcomes)
                    if first.end():
                        return
                    yield

    def finish(self) -> BundleParts:
        """Runs what still waits; returns the parts."""
        self._writer.write(self._bundle.finish())
        return self._writer.finish()


class BlockReader:
    """Reads files into blocks of rows.

    Args:
        job: what to run.
        folder: of the output's parts.
        fit: what a model takes of blocks; None: it takes rows.
        order: of dead letters, in which their places are counted; None: as they come.
        resume: whether to leave out the rows that earlier runs finished.
        reads_ahead: whether this process reads the contents of files that are rows.
    """

    def __init__(
        self,
        job: Job,
        folder: str,
        fit: Fit | None,
        order: LetterOrder | None = None,
        *,
        resume: bool,
        reads_ahead: bool = True,
    ) -> None:
        self._left = sys.maxsize if job.limit is None else job.limit
        self._types = dict(job.types)
        self.folder = folder
        self._resume = resume
        self._fit = fit
        self._lengths = job.length_column
        self._order = order
        self._contents = job.contents and job.contents._replace(ahead=reads_ahead)

    def read(self, index: int, source: Source) -> Generator[Block, None, None]:
        """Yields blocks.

        Args:
            index: of the source, counted from 0.
            source: the file.

        Raises:
            OSError: the file cannot be read.
        """
        if not self._left:
            return
        try:
            blocks = self._blocks(index, source)
            if is_pipe(source.path):  # not read ahead: a run that failed would wait for the next row
                yield from blocks
                return
            with closing(prefetch(blocks)) as coming:
                yield from cut_by_time(coming) if self._resume and self._fit is not None else coming
        except Exception as error:
            raise OSError(f"cannot read {as_name(source.path)} as {source.format}: {error}") from error

    def elements(self, block: Block) -> Iterable[tuple[Any, BlockRow | None]]:
        """What the model's bundle takes of a block: its rows with their places, or the whole block."""
        if self._fit is not None:
            return [(block, None)]
        rows = block.each() if self._lengths is None else with_lengths(block.each(), self._lengths)
        return rows if self._contents is None else self._contents.of(rows)

    def _blocks(self, index: int, source: Source) -> Iterator[Block]:
        done = load_done(self.folder) if self._resume else RowRanges()
        share = following.get(self.folder)
        if source.letters:
            letters = read_dead_letters(source, self._types)
            if self._order is not None:
                return self._order.placed(letters, source, index, done, share)
            return placed(letters, source, index, done, share=share)
        names = () if self._fit is None else self._fit.names
        blocks = self._limited(read_blocks(source, index, self._types, done, names, share=share))
        return blocks if self._fit is None else fitted(blocks, self._fit)

    def _limited(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            some = block[: self._left]
            self._left -= len(some)
            yield some
            if not self._left:
                return


class OutcomeWriter:
    """Writes the outcomes of a bundle into parts: predictions, dead letters, skipped rows.

    Args:
        folder: of the parts.
        keep: the input columns to output; None: all.
        resume: whether parts are durable.
        all_may_fail: whether a bundle whose first rows all fail goes on.
        paid: whether predictions are paid for: durable parts write each at once, and interrupts wait for requests.
        no_bytes: numbers of the sources whose output cannot hold bytes: rows with them become dead letters.
        explode: whether predictions of several values become several columns.
    """

    def __init__(
        self,
        folder: str,
        keep: tuple[str, ...] | None,
        *,
        resume: bool,
        all_may_fail: bool = False,
        paid: bool = False,
        no_bytes: Container[int] = (),
        explode: bool = False,
    ) -> None:
        self._explode = explode
        self._no_bytes = no_bytes
        self._folder, self._keep = folder, keep
        self._resume = resume
        self.all_may_fail = all_may_fail
        self.paid = paid
        self.first_rows = FirstRows(may_fail=all_may_fail)
        """Of the bundle."""
        self._parts: tuple[PartWriter, ...] = ()
        self._lines = LetterLines()

    def begin(self) -> None:
        """Starts a bundle's parts; those of a bundle that failed do not count."""
        self.abandon()
        self.first_rows = FirstRows(may_fail=self.all_may_fail)
        kind = partial(DurablePartWriter, paid=self.paid) if self._resume else PartWriter
        self._parts = self._good, self._bad, self._skipped = (
            kind(self._folder, predictions=True, keep=self._keep),
            kind(self._folder, predictions=False),
            kind(self._folder, predictions=None),
        )

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Writes outcomes, whose tags are ``BlockRow``s; those of blocks have none."""
        for outcome in outcomes:
            if isinstance(outcome, Predictions):
                if outcome.tags:
                    self._write_predictions(*outcome)
            elif isinstance(outcome, Failure):
                letter = DeadLetter.of(outcome.record, outcome.stage, outcome.index)
                for row in [outcome.tag] if outcome.tag is not None else letter.element.places():
                    self._write_letter(row, letter)
            else:
                for row in outcome.tags:
                    self._skipped.write_line(OutputLine(row.place, "{}"))

    def finish(self) -> BundleParts:
        """Closes the parts; those without rows are no parts."""
        paths, self._parts = [part.finish() for part in self._parts], ()
        return BundleParts([path for path in paths if path is not None], self.first_rows.were_last)

    def abandon(self) -> None:
        """Closes the parts of a bundle that failed; if the run is resumable, their rows count."""
        parts, self._parts = self._parts, ()
        for part in parts:
            part.abandon()

    def _encode(self, block: Block) -> Encode:
        return encoded_without_bytes if block.source in self._no_bytes else encoded

    def _doubtful(self, block: Block) -> tuple[str, ...]:
        return columns_of_bytes(block, self._keep if block.source in self._no_bytes else ())

    def _write_predictions(self, rows: list[Any], values: list[Any], fallback: str | None) -> None:
        if rows[0] is None:
            for block, predictions, model_id in values:
                if block.batch is None:
                    self._write_rows(list(block.places()), predictions, fallback)
                else:
                    self._write_block(block, predictions, model_id)
        elif (
            not (fallback or self._explode)
            and SCALARS.issuperset(map(type, values))
            and all(block.batch is not None and not self._doubtful(block) for block in blocks_of(rows))
        ):
            self._good.write_rows(OutputRows(rows, {PREDICTION: values}))
        else:
            self._write_rows(rows, values, fallback)

    def _write_rows(self, rows: list[BlockRow], values: list[Any], fallback: str | None) -> None:
        for some in rows_together(self._encoded(rows, values, fallback)):
            self._good.write_rows(some)

    def _encoded(
        self, rows: list[BlockRow], values: list[Any], fallback: str | None
    ) -> Iterator[tuple[BlockRow, dict[str, Any]]]:
        """The rows with their values by column; those that cannot be written become dead letters."""
        doubtful = {block: self._doubtful(block) for block in blocks_of(rows)}
        for row, value in zip(rows, values, strict=True):
            prediction, model_id = answer_of(value)
            model_id = fallback if model_id is None else model_id
            try:
                kept = self._keep if row.block.batch is None else doubtful[row.block]
                encode = self._encode(row.block)
                columns = {} if kept == () else encoded_record(row.row, kept, encode)
                some = exploded(prediction) if self._explode else {PREDICTION: prediction}
                columns.update((name, encode(one)) for name, one in some.items())
                if model_id is not None:
                    columns["model_id"] = encoded(model_id)
            except JsonEncodeError as error:
                self._write_letter(row, unwritten(error, model_id))
            else:
                yield row, columns

    def _write_block(self, block: Block, predictions: Any, model_id: str | None) -> None:
        """Writes rows; if that fails, halves the block until only the rows that cannot be written are left."""
        try:
            encode = self._encode(block)
            batch = batch_of_block(block, self._keep, predictions, model_id, encode, explode=self._explode)
        except JsonEncodeError as error:
            middle = len(block) // 2
            if middle:
                self._write_block(block[:middle], predictions[:middle], model_id)
                self._write_block(block[middle:], predictions[middle:], model_id)
                return
            if isinstance(predictions, list):
                model_id = answer_of(predictions[0])[1]
            self._write_letter(next(block.places()), unwritten(error, model_id))
        else:
            self._good.write_batch(block.place, batch)

    def _write_letter(self, place: BlockRow, letter: DeadLetter) -> None:
        self.first_rows.failed(place.place)
        self._bad.write_line(self._lines.line_of(place, letter))
