"""The steps of a run: reading blocks and rows, and writing predictions, dead letters and skips into parts."""

from __future__ import annotations

import sys
from collections.abc import Container, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow

from headrace.core.errors import BudgetError
from headrace.core.result import DeadLetter, Failure, Outcome, Predictions
from headrace.jobs import storage
from headrace.jobs.direct import DirectParquet
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.files import Source
from headrace.jobs.flow import FirstRows, cut_by_time, prefetch
from headrace.jobs.into import LetterOrder
from headrace.jobs.job import CancelledError, Job, cancelled, refuse_if_cancelled
from headrace.jobs.json_lines import JsonEncodeError, as_line
from headrace.jobs.letters import LetterLines, unwritten
from headrace.jobs.opening import following
from headrace.jobs.output_batches import OutputLine, batch_of_block
from headrace.jobs.parts import BundleParts, PartWriter
from headrace.jobs.pipes import as_name, is_pipe
from headrace.jobs.reading import placed, read_blocks
from headrace.jobs.resume import load_done
from headrace.jobs.retry import read_dead_letters
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import Block, BlockRow, Row, with_lengths
from headrace.rows.columns import Fit, fitted
from headrace.rows.examples import PREDICTION, answer_of, exploded
from headrace.rows.values import array_of
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
                if self._bundle.spent:
                    write(self._bundle.finish())
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
        self.is_direct = False
        """Whether one bundle brings all rows of a Parquet file, which can be written at once."""

    def begin(self) -> None:
        """Starts a bundle's parts; those of a bundle that failed do not count."""
        self.abandon()
        self.first_rows = FirstRows(may_fail=self.all_may_fail)
        kind = partial(DurablePartWriter, paid=self.paid) if self._resume else PartWriter
        self._parts = self._good, self._bad, self._skipped = (
            kind(self._folder, predictions=True),
            kind(self._folder, predictions=False),
            kind(self._folder, predictions=None),
        )
        if self.is_direct:
            self._good.direct = DirectParquet(storage.join(self._folder, "direct.parquet"))

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

    def _write_predictions(self, rows: list[Any], values: list[Any], fallback: str | None) -> None:
        if rows[0] is not None:
            self._write_rows(rows, values, fallback)
            return
        for block, predictions, model_id in values:
            batch = block.batch
            if batch is not None:
                batch = batch_of_block(block, self._keep, predictions, model_id, explode=self._explode)
            if batch is None:
                self._write_rows(list(block.places()), predictions, model_id or fallback)
            else:
                self._good.write_batch(block.place, batch)

    def _write_rows(self, rows: list[BlockRow], values: list[Any], fallback: str | None) -> None:
        """Writes rows as lines of JSON; those that cannot be written become dead letters."""
        lines = []
        for row, record, value in zip(rows, _records_of(rows), values, strict=True):
            prediction, model_id = answer_of(value)
            model_id = fallback if model_id is None else model_id
            kept = record if self._keep is None else {name: record.get(name) for name in self._keep}
            try:
                some = exploded(prediction) if self._explode else {PREDICTION: prediction}
                more = {} if model_id is None else {"model_id": model_id}
                line = as_line({**kept, **some, **more}, bytes_too=row.block.source not in self._no_bytes)
            except JsonEncodeError as error:
                self._write_letter(row, unwritten(error, model_id))
            else:
                lines.append(OutputLine(row.place, line[:-1].decode()))
        self._good.write_lines(lines)

    def _write_letter(self, place: BlockRow, letter: DeadLetter) -> None:
        self.first_rows.failed(place.place)
        self._bad.write_line(self._lines.line_of(place, letter))


def _records_of(rows: Iterable[BlockRow]) -> Iterator[Row]:
    """The rows as they were read."""
    for block, some in groupby(rows, itemgetter(0)):
        places = [row.place - block.place for row in some]
        if block.batch is None:
            yield from (block.records[place] for place in places)
        elif places == list(range(places[0], places[0] + len(places))):
            yield from block[places[0] : places[-1] + 1].rows()
        else:
            yield from replace(block, batch=block.batch.take(array_of(places, pyarrow.int64()))).rows()
