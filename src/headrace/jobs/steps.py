"""The steps of a run, reading and predicting, and the driver that takes them in this process without Beam."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import InitVar, dataclass
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple, TypeVar

from headrace.core.errors import BudgetError
from headrace.core.events import BatchCompleted, CacheUsed, Event, Observer
from headrace.core.phases import Phase, during
from headrace.core.result import Predictions
from headrace.jobs.earlier import Earlier
from headrace.jobs.files import Source
from headrace.jobs.into import LetterOrder
from headrace.jobs.job import CancelledError, Job, cancelled, refuse_if_cancelled
from headrace.jobs.letters import read_dead_letters
from headrace.jobs.parts import OutcomeWriter, leave_mark
from headrace.jobs.pipes import as_name, is_pipe
from headrace.jobs.reading import RowRanges, placed, read_blocks
from headrace.jobs.storage import prefetch
from headrace.jobs.stored_rows import StoredOutput
from headrace.metrics.totals import Totals
from headrace.models.memory import hold_heap, release_heap
from headrace.rows.blocks import Block, BlockRow, with_lengths
from headrace.rows.columns import Fit, fitted
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.spec import SessionSpec
from headrace.runtime.usage_meter import end_budget

_PACE_SECONDS = 1.0

ItemT = TypeVar("ItemT")


class RunSteps(NamedTuple):
    """What all drivers do with sources: ``Loop``, ``Workers`` and ``BeamPipeline``."""

    spec: SessionSpec
    """Of the handler, wrapped for rows or blocks."""
    reader: BlockReader
    writer: OutcomeWriter

    @property
    def folder(self) -> str:
        """The folder of the parts."""
        return self.reader.folder


class SourceBundle:
    """Reads sources into a new bundle of the runtime, and writes its outcomes into parts; used by one thread."""

    def __init__(self, steps: RunSteps, bundle: AnyBundle, observer: Observer | None = None) -> None:
        self._reader, self._writer = steps.reader, steps.writer
        self._bundle = bundle
        self._observer = observer
        self._is_cut = False
        self._writer.begin()

    def batches(self, sources: Iterable[tuple[int, Source]]) -> Generator[None, None, None]:
        """Runs the rows of sources, or some if the bundle's first rows all fail; pauses when outcomes were written.

        Each source comes with its index; the next one is asked for before one is done.

        Raises:
            CancelledError: the job was cancelled.
            Exception: a file cannot be read, a part cannot be written, or the model cannot be loaded.
        """
        add, writer, reader = self._bundle.add, self._writer, self._reader
        if writer.has_only_failed():
            self._is_cut = True
            return
        try:
            with closing(reader.read(sources)) as blocks:
                elements = reader.in_time(chain.from_iterable(map(self._elements, blocks)))
                for element, place in elements:
                    if cancelled:
                        refuse_if_cancelled(reader.folder)
                    if self._bundle.spent:
                        writer.write(self._bundle.finish())
                    if outcomes := add(element, place):
                        writer.write(outcomes)
                        if writer.has_only_failed():  # the next row of a pipe may be long in coming
                            self._is_cut = reader.has_pipes or any(True for _ in elements)
                            return
                        yield
        except CancelledError:
            self.drain()
            raise

    def drain(self) -> None:
        """Writes what is paid for, of a run that was cancelled."""
        if self._writer.paid:
            with suppress(BudgetError):  # of what was not sent
                self._writer.write(self._bundle.finish())

    def _elements(self, block: Block) -> Iterable[tuple[Any, Any]]:
        """What is to be predicted of a block; what an earlier output has of it is written."""
        elements, earlier = self._reader.elements(block), self._reader.earlier
        return elements if earlier is None else earlier.split(elements, self._take_over)

    def _take_over(self, rows: list[BlockRow], values: list[Any]) -> None:
        self._writer.write([Predictions(rows, values)])
        if self._observer is not None:
            self._observer.on_event(CacheUsed("", len(rows), 0))

    def finish(self) -> bool:
        """Runs what still waits, and closes the parts; returns whether rows were left out, as the first all failed."""
        self._writer.write(self._bundle.finish())
        self._writer.finish()
        return self._is_cut


@dataclass
class BlockReader:
    """Reads files into blocks of rows."""

    job: InitVar[Job]
    folder: str
    """Of the output's parts."""
    fit: Fit | None
    """What a model takes of blocks; None: it takes rows."""
    order: LetterOrder | None
    """Of dead letters, in which their places are counted; None: as they come."""
    rest: RowRanges
    """Places of rows that are not to be read."""
    earlier: Earlier | None
    """The output whose predictions are taken over; None: none are."""
    resume: bool
    """Whether to leave out the rows that earlier runs finished."""
    reads_ahead: InitVar[bool]
    """Whether this process reads the contents of files that are rows."""

    def __post_init__(self, job: Job, reads_ahead: bool) -> None:
        self.has_pipes = any(is_pipe(source.path) for source in job.sources)
        self._left = sys.maxsize if job.limit is None else job.limit
        self._stop_at, self._types, self._lengths = job.stop_at, dict(job.types), job.length_column
        self._contents = job.contents and job.contents._replace(ahead=reads_ahead)
        self._done: RowRanges | None = None if self.resume else self.rest
        """The places of rows that are not read, as earlier runs finished them; None: nobody has looked yet."""

    def read(self, sources: Iterable[tuple[int, Source]]) -> Generator[Block, None, None]:
        """Yields the blocks of sources, which come with their indexes.

        Raises:
            OSError: a file cannot be read.
        """
        blocks = self._all_blocks(sources)
        if self.has_pipes:  # not read ahead: a run that failed would wait for the next row
            yield from blocks
            return
        with closing(prefetch(blocks)) as coming:
            yield from cut_by_time(coming) if self.resume and self.fit is not None else coming

    def in_time(self, elements: Iterator[ItemT]) -> Iterator[ItemT]:
        """The first element, and those that are asked for before no more are to be read."""
        if (until := self._stop_at) is None:
            return elements
        return chain(islice(elements, 1), takewhile(lambda _: time.monotonic() < until, elements))

    def elements(self, block: Block) -> Iterable[tuple[Any, BlockRow | None]]:
        """What the model's bundle takes of a block: its rows with their places, or the whole block."""
        if self.fit is not None:
            return [(block, None)]
        rows = block.each() if self._lengths is None else with_lengths(block.each(), self._lengths)
        return rows if self._contents is None else self._contents.of(rows)

    def _all_blocks(self, sources: Iterable[tuple[int, Source]]) -> Iterator[Block]:
        for index, source in sources:
            try:
                yield from self._blocks(index, source) if self._left else ()
            except Exception as error:
                raise OSError(f"cannot read {as_name(source.path)} as {source.format}: {error}") from error

    def _blocks(self, index: int, source: Source) -> Iterator[Block]:
        if self._done is None:
            self._done = StoredOutput.find(self.folder).places | self.rest
        done = self._done
        if source.letters:
            letters = read_dead_letters(source, self._types)
            return (self.order.placed if self.order else placed)(letters, source, index, done)
        names = () if self.fit is None else self.fit.names
        blocks = self._limited(read_blocks(source, index, self._types, done, names))
        return blocks if self.fit is None else fitted(blocks, self.fit)

    @during(Phase.READING)
    def _limited(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            some = block[: self._left]
            self._left -= len(some)
            yield some
            if not self._left:
                return


def cut_by_time(blocks: Iterable[Block], clock: Callable[[], float] = time.monotonic) -> Iterator[Block]:
    """Cuts blocks to what about a second processes, so that killing the run loses few rows of a slow model.

    The first part is one row; each later part is at most twice as long as the one before it.
    """
    begin, size, taken = clock(), 1, 0
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + size]
            yield part
            start += len(part)
            taken += len(part)
            rows_in_a_second = taken / max(clock() - begin, 1e-3)
            size = max(1, min(2 * size, int(rows_in_a_second * _PACE_SECONDS)))


class Loop:
    """Feeds all rows to a single bundle; holds about a batch of rows in memory."""

    def __init__(self, sources: Sequence[Source], steps: RunSteps) -> None:
        self._sources = sources
        self._steps = steps

    def execute(self) -> Totals:
        """Runs the job to the end; returns what it counted.

        Raises:
            Exception: a file cannot be read or written, the model cannot be loaded, or the job was cancelled.
        """
        totals = Totals()
        with ExitStack() as stack:
            hold_heap()
            stack.callback(release_heap)
            worker = open_worker(self._steps.spec)
            stack.callback(end_budget, self._steps.spec)
            stack.callback(worker.close)
            stack.callback(self._steps.writer.abandon)
            observer = FanOut(totals, self)
            bundle = SourceBundle(self._steps, worker.bundle(observer), observer)
            for _ in bundle.batches(enumerate(self._sources)):
                pass
            if bundle.finish():
                leave_mark(self._steps.folder)
        return totals

    def on_event(self, event: Event) -> None:
        """Ends a cancelled run between two batches: those of rows that are sorted together take long."""
        if isinstance(event, BatchCompleted) and not self._steps.writer.paid:
            refuse_if_cancelled(self._steps.folder)

    def cancel(self) -> None:
        """Nothing to do: the bundle checks for cancellation before each row, and after each batch."""
