"""Writes outcomes into parts: files of record batches, which become the output once all bundles have succeeded.

A part is a sequence of chunks: Arrow streams of one record batch each, whose first column has the places of its rows in
the input. The whole chunks at the beginning of a part count: a process that was killed may have begun one more.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice, repeat
from operator import itemgetter
from typing import Any, BinaryIO

import numpy
import pyarrow
import pyarrow.ipc

from headrace.core.phases import Phase, during
from headrace.core.result import DeadLetter, Failure, Outcome, Predictions
from headrace.jobs import storage
from headrace.jobs.job import FIRST_ROWS
from headrace.jobs.json_lines import JsonEncodeError, as_line
from headrace.jobs.letters import Tracebacks, line_of, unwritten
from headrace.jobs.output_batches import batch_of_block, batch_of_lines, kept_columns
from headrace.jobs.parquet_tables import GROUP_BYTES, GROUP_ROWS, DirectParquet
from headrace.jobs.publishing import sync
from headrace.rows.blocks import Block, BlockRow, Row
from headrace.rows.examples import PREDICTION, answer_of, exploded
from headrace.rows.values import numbers_as_array

_SYNC_SECONDS = 1.0
_FEWEST_IN_COLUMNS, _MANY_ROWS = 64, 1 << 12
"""Fewer rows are lines, unless the output is typed; once types have changed often, all but many rows are."""
_OFTEN = 6
"""Each change begins a chunk, which costs as much as hundreds of lines; one after many rows does not count."""

KINDS = ("predictions", "letters", "skipped")
"""The extensions of parts."""
CUT = "cut"
"""A file beside the parts of a run whose first rows have all failed: it has left out others."""


@dataclass
class PartWriter:
    """Writes rows into a part file, which the first of them creates."""

    folder: str
    kind: str
    """Of ``KINDS``."""
    durable: bool = False
    """Whether rows outlive the end of this process, but for those of the last second; the folder is local."""
    paid: bool = False
    """Whether durable rows do so at once."""
    direct: DirectParquet | None = None
    """The output's own file, which takes chunks of columns as long as they fit."""

    def __post_init__(self) -> None:
        self._path = storage.join(self.folder, f"{uuid.uuid4().hex}.{self.kind}")
        self._sync_at = 0.0
        """When the next rows go to the disk."""
        self._has_failed = False
        """Whether rows are lacking: those that would follow are not added."""
        self._file: BinaryIO | None = None
        self._lines: list[tuple[int, str]] = []
        """With their places; not in the chunk yet."""
        self._chunk: list[tuple[Any, Any]] = []
        """Record batches of one schema, with the places of their rows."""
        self._rows = self._bytes = 0
        """Of the chunk and the lines."""

    def write_lines(self, lines: Sequence[tuple[int, str]]) -> None:
        """Adds rows as lines of JSON, with their places."""
        with self._adding(len(lines), sum(len(text) for _, text in lines)):
            self._lines += lines

    def write(self, places: Any, batch: Any) -> None:
        """Adds rows as a record batch, with an array of their places."""
        with self._adding(len(places), batch.nbytes):
            self._end_lines()
            self._add(places, batch)

    def finish(self) -> None:
        """Closes the part."""
        self._sync_at = 0.0
        with self._adding():
            self._write_chunk()
            if self.direct is not None:
                self.direct.close()
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        """Closes the part of a bundle that failed; if the part is durable, its rows count."""
        with suppress(Exception):  # what failed the bundle is the error to report
            if self.durable and not self._has_failed:
                self.finish()
        for file in (self.direct, self._file):
            with suppress(Exception):
                if file is not None:
                    file.close()

    @contextmanager
    def _adding(self, rows: int = 0, size: int = 0) -> Iterator[None]:
        try:
            yield
            self._rows, self._bytes = self._rows + rows, self._bytes + size
            is_due = self.durable and time.monotonic() >= self._sync_at
            if is_due or (self.durable and self.paid) or self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
                self._write_chunk()
            if is_due and self._file is not None:
                os.fsync(self._file.fileno())
                self._sync_at = time.monotonic() + _SYNC_SECONDS
        except BaseException:
            self._has_failed = True
            raise

    def _end_lines(self) -> None:
        """Makes a batch of the lines that wait."""
        lines, self._lines = self._lines, []
        if lines:
            places, texts = zip(*lines, strict=True)
            self._add(numpy.array(places, numpy.int64), batch_of_lines(list(texts)))

    def _add(self, places: Any, batch: Any) -> None:
        if self._chunk and not self._chunk[0][1].schema.equals(batch.schema, check_metadata=True):
            self._write_chunk()
        self._chunk.append((places, batch))

    def _write_chunk(self) -> None:
        self._end_lines()
        if not self._chunk:
            return
        some, batches = zip(*self._chunk, strict=True)
        self._chunk, self._rows, self._bytes = [], 0, 0
        table = pyarrow.Table.from_batches(batches)
        batch = None if self.direct is None else self.direct.add(table)
        if batch is None:
            (batch,) = table.combine_chunks().to_batches()
        if self._file is None:
            self._file = storage.create(self._path)
            if self.durable:
                sync(self.folder)
        schema = batch.schema.insert(0, pyarrow.field("place", pyarrow.int64()))
        columns = [numbers_as_array(numpy.concatenate(some)), *batch.columns]
        stream = pyarrow.ipc.new_stream(self._file, schema)
        stream.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
        stream.close()  # not after an error: it would add to what is not whole
        if self.durable:
            self._file.flush()


@dataclass
class OutcomeWriter:
    """Writes the outcomes of a bundle into parts: predictions, dead letters, skipped rows."""

    folder: str
    """Of the parts."""
    keep: tuple[str, ...] | None
    """The input columns to output; None: all."""
    resume: bool
    """Whether parts are durable."""
    all_may_fail: bool = False
    """Whether a bundle whose first rows all fail goes on."""
    paid: bool = False
    """Whether predictions are paid for: durable parts write each at once, and interrupts wait for requests."""
    no_bytes: Container[int] = ()
    """Numbers of the sources whose output cannot hold bytes: rows with them become dead letters."""
    typed: Container[int] = ()
    """Numbers of the sources whose output keeps the types of the input's columns."""
    explode: bool = False
    """Whether predictions of several values become several columns."""
    is_direct: bool = False
    """Whether one bundle brings all rows of a Parquet file, which can be written at once."""

    def __post_init__(self) -> None:
        self.failed = self.others = 0
        """How many of the bundle's rows are dead letters, and how many are not."""
        self._parts: list[PartWriter] = []
        self._tracebacks = Tracebacks()
        self._schema: Any = None
        """Of the last rows that were to be written in columns; None: they could not."""
        self._steady, self._changes = _MANY_ROWS, 0
        """How many rows had it, and how often it has changed."""

    def has_only_failed(self) -> bool:
        """Whether the bundle is to read no further: what fails a thousand times fails the rest, too."""
        return not self.all_may_fail and not self.others and self.failed >= FIRST_ROWS

    def begin(self) -> None:
        """Starts a bundle's parts."""
        self.abandon()
        self.failed = self.others = 0
        direct = DirectParquet(storage.join(self.folder, "direct.parquet")) if self.is_direct else None
        self._good, self._bad, self._skipped = self._parts = [
            PartWriter(self.folder, kind, durable=self.resume, paid=self.paid, direct=one)
            for kind, one in zip(KINDS, (direct, None, None), strict=True)
        ]

    @during(Phase.WRITING)
    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Writes outcomes, whose tags are ``BlockRow``s; those of blocks have none."""
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                letter = DeadLetter.of(outcome.record, outcome.stage, outcome.index)
                for row in [outcome.tag] if outcome.tag is not None else letter.element.places():
                    self._write_letter(row, letter)
            elif outcome.tags and isinstance(outcome, Predictions):
                self._write_predictions(*outcome)
            elif outcome.tags:
                self.others += len(outcome.tags)
                self._skipped.write_lines([(row.place, "{}") for row in outcome.tags])

    @during(Phase.WRITING)
    def finish(self) -> None:
        """Closes the parts."""
        for part in self._parts:
            part.finish()
        self._parts = []

    def abandon(self) -> None:
        """Closes the parts of a bundle that failed; if the run is resumable, their rows count."""
        parts, self._parts = self._parts, []
        for part in parts:
            part.abandon()

    def _write_predictions(self, rows: list[Any], values: list[Any], fallback: str | None) -> None:
        if rows[0] is None:
            for block, predictions, model_id in values:
                places = numpy.arange(block.place, block.place + len(block))
                self._write_rows(block, places, predictions, model_id or fallback)
            return
        answers = iter(values)
        for block, some in groupby(rows, itemgetter(0)):
            places = numpy.array([row.place for row in some], numpy.int64)
            self._write_rows(block, places, list(islice(answers, len(places))), fallback)

    def _write_rows(self, block: Block, places: Any, values: Any, model_id: str | None) -> None:
        """Writes rows of a block in columns, or as lines of JSON: few rows, and values that no column holds."""
        batch, is_typed = block.typed if block.batch is None else block.batch, block.source in self.typed
        fewest = _MANY_ROWS if self._changes >= _OFTEN else 0 if is_typed else _FEWEST_IN_COLUMNS
        kept: dict[str, Any] = {}
        if batch is not None and (is_typed or len(places) >= fewest):
            kept = kept_columns(_taken(batch, places - block.place), self.keep, typed=is_typed)
        if batch is not None and len(places) >= fewest:
            found = batch_of_block(kept, values, model_id, explode=self.explode)
            schema = None if found is None else found.schema
            if schema != self._schema:
                self._changes += self._steady < _MANY_ROWS
                self._schema, self._steady = schema, 0
            self._steady += len(places)
            if found is not None:
                self.others += len(places)
                self._good.write(places, found)
                return
        rows = [BlockRow(block, place) for place in places.tolist()]
        if batch is None or not is_typed:
            records = map(self._kept, _records_of(block, places - block.place))
            self._good.write_lines(self._lines_of(rows, records, values, model_id))
        elif lines := self._lines_of(rows, repeat({}), values, model_id):
            written = numpy.array([place for place, _ in lines], numpy.int64)
            if len(written) < len(places):
                kept = kept_columns(_taken(batch, written - block.place), self.keep, typed=True)
            self._good.write(written, batch_of_lines([text for _, text in lines], kept))

    def _kept(self, record: Row) -> Row:
        return record if self.keep is None else {name: record.get(name) for name in self.keep}

    def _lines_of(
        self, rows: list[BlockRow], records: Iterable[Row], values: Iterable[Any], fallback: str | None
    ) -> list[tuple[int, str]]:
        """Rows as lines of JSON; those that cannot be are dead letters."""
        lines = []
        for row, record, value in zip(rows, records, values, strict=False):
            prediction, model_id = answer_of(value)
            model_id = fallback if model_id is None else model_id
            try:
                some = exploded(prediction) if self.explode else {PREDICTION: prediction}
                more = {} if model_id is None else {"model_id": model_id}
                line = as_line({**record, **some, **more}, bytes_too=row.block.source not in self.no_bytes)
            except JsonEncodeError as error:
                self._write_letter(row, unwritten(error, model_id))
            else:
                lines.append((row.place, line[:-1].decode()))
        self.others += len(lines)
        return lines

    def _write_letter(self, row: BlockRow, letter: DeadLetter) -> None:
        self.failed += 1
        self._bad.write_lines([(row.place, line_of(row, letter, self._tracebacks))])


def _records_of(block: Block, numbers: Any) -> Sequence[Any]:
    """The rows of a block with these numbers, as they were read."""
    if block.batch is None:
        return [block.records[number] for number in numbers.tolist()]
    return replace(block, batch=_taken(block.batch, numbers)).rows()


def _taken(batch: Any, numbers: Any) -> Any:
    """The rows of a record batch with these numbers."""
    if (numpy.diff(numbers) == 1).all():
        return batch.slice(numbers[0], len(numbers))
    return batch.take(numbers_as_array(numbers))


def leave_mark(folder: str) -> None:
    """Notes in the folder of parts that rows were left out, since the first ones had all failed."""
    storage.create(storage.join(folder, CUT)).close()
