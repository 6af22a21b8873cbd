"""Crash-safe part files: which rows they hold is known even if the process is killed or power is lost.

Each part has an index file beside it, with one record for each run of neighbouring rows: place, number of rows, bytes.
Several runs form a stream: the last run's record holds the bytes of the stream, the others hold 0. A part is synced to
disk before its index is, so every complete record in the index is true. Rows that were paid for are in a journal until
then.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple

import numpy
import pyarrow
import pyarrow.ipc

from headrace.jobs.journal import Journal, journals, read_journal, remove_journal
from headrace.jobs.output_batches import OutputLine, OutputRows, Runs, as_lines, in_order
from headrace.jobs.parts import KINDS, OutputPart, PartWriter, table_of
from headrace.jobs.positions import OutputPlaces
from headrace.jobs.publishing import sync_folder
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import place_at

_CHUNK_RECORDS = 100_000
_COMMIT_SECONDS = 1.0
_COMMIT_BYTES = 1 << 25
_STREAMS_AT_ONCE = 64
_RECORD = numpy.dtype([("place", "<i8"), ("rows", "<i8"), ("bytes", "<i8")])
_SUFFIX = ".index"


class DurablePartWriter(PartWriter):
    """Writes a part and its index; what it accepts is durable within about a second. Thread-safe.

    Args:
        folder: of the parts; local.
        predictions: as in ``OutputPart``.
        keep: the input columns to output; None: all.
        paid: whether rows are in a journal at once, which outlives a process that is killed.
    """

    def __init__(
        self, folder: str, *, predictions: bool | None, keep: tuple[str, ...] | None = None, paid: bool = False
    ) -> None:
        super().__init__(folder, predictions=predictions, keep=keep)
        self._journal = Journal(self._path) if paid else None
        self._index: BinaryIO | None = None
        self._runs: list[tuple[int, int, int]] = []
        self._unsafe_bytes = 0
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self._commit_lock = threading.Lock()

    def write_rows(self, some: OutputRows, what: str) -> None:
        """As ``PartWriter.write_rows``."""
        with self._lock:
            if self._journal is not None:
                self._journal.add(as_lines(some, self._keep))
            super().write_rows(some, what)

    def write_line(self, line: OutputLine, what: str, message: str = "") -> None:
        """As ``PartWriter.write_line``."""
        with self._lock:
            if self._journal is not None:
                self._journal.add([line])
            super().write_line(line, what, message)

    def finish(self) -> OutputPart | None:
        """Closes the part durably; None if nothing was written."""
        try:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
            self._commit()
        finally:
            if self._journal is not None:
                self._journal.end()  # what a commit that failed has left stays
            for file in (self._file, self._index):
                with suppress(OSError):  # raised before; all that counts is on disk
                    if file is not None:
                        file.close()
        return self._part() if self._file else None

    def abandon(self) -> None:
        """Closes the part of a bundle that failed durably: its rows count."""
        with suppress(Exception):  # what failed the bundle is the error to report
            self.finish()

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Surrounds each acceptance of rows with the lock; a commit follows in time even if no more rows do."""
        with self._lock, self._at_work():
            yield
            if self._timer is None:
                self._commit_after(_COMMIT_SECONDS)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Surrounds writes; after an error all further use raises that error.

        How much was written before the error is unknown, so later data might not lie where its record says.
        """
        if self._error is not None:
            raise self._error
        try:
            yield
        except BaseException as error:  # Arrow and numpy have their own errors, and memory may be short
            self._error = error
            raise

    def _commit_after(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._commit_in_time)
        self._timer.daemon = True
        self._timer.start()

    def _commit_in_time(self) -> None:
        with suppress(Exception):  # kept in _error: the next write, or finish, raises it
            self._commit()

    def _commit(self) -> None:
        """Makes all that waits durable: part first, then index. Other threads may go on adding rows meanwhile."""
        with self._commit_lock, self._at_work():
            with self._lock:
                self._timer = None
                self._write()
                runs, self._runs, self._unsafe_bytes = self._runs, [], 0
                noted = None if self._journal is None else self._journal.end()
            if not runs or self._file is None or self._index is None:
                return
            _sync(self._file)
            self._index.write(numpy.array(runs, dtype=_RECORD).tobytes())
            _sync(self._index)
            remove_journal(noted)

    def _ordered(self, waiting: list[Any]) -> list[Any]:
        """By place: neighbours then form runs, also where rows were sorted by length."""
        if waiting and isinstance(waiting[0], OutputLine):
            return sorted(waiting, key=attrgetter("place"))
        return in_order(waiting)

    def _write_stream(self) -> None:
        """Writes the stream. The caller holds the lock."""
        if self._file is None:
            self._file, self._index = _create(self._path), _create(self._path + _SUFFIX)
            sync_folder(os.path.dirname(self._path))
        self._stream.batches.sort(key=lambda placed: placed[0][0][0])  # recovered batches arrive out of order
        runs = _merged([run for runs, _ in self._stream.batches for run in runs])
        start = self._file.tell()
        self._stream.write(self._file)
        size = self._file.tell() - start
        self._runs += [(*run, 0) for run in runs[:-1]] + [(*runs[-1], size)]
        self._unsafe_bytes += size
        if self._unsafe_bytes > _COMMIT_BYTES and self._timer is not None:  # as much as a disk syncs at once
            self._timer.cancel()
            self._unsafe_bytes = 0
            self._commit_after(0)


class DurableParts(NamedTuple):
    """The runs of rows in all parts of one kind in a folder, in input order."""

    runs: Any
    """An array of (place, rows, bytes)."""
    offsets: Any
    """Where in its part the stream of each run begins."""
    firsts: Any
    """How many rows precede each run in its stream."""
    parts: Any
    """Index of each run's part."""
    paths: list[str]
    """Of the parts."""

    @classmethod
    def find(cls, folder: str, *, predictions: bool | None) -> DurableParts:
        """Reads the indexes in a folder; ignores incomplete records, and records of streams that are not complete."""
        paths = sorted(glob.glob(f"{glob.escape(folder)}/*.{KINDS[predictions]}"))
        found = [_runs_of(path) for path in paths]
        numbers = [numpy.full(len(runs), number) for number, runs in enumerate(found)]
        runs = numpy.concatenate([numpy.empty(0, _RECORD), *found])
        order = numpy.argsort(runs["place"], kind="stable")
        offsets, firsts, parts = (
            numpy.concatenate([numpy.empty(0, numpy.int64), *each])[order]
            for each in (map(_offsets, found), map(_firsts, found), numbers)
        )
        return cls(runs[order], offsets, firsts, parts, paths)

    def of(self, source: int) -> DurableParts:
        """The runs of one source."""
        ends = place_at(source, 0), place_at(source + 1, 0)
        some = slice(*numpy.searchsorted(self.runs["place"], ends))
        return DurableParts(self.runs[some], self.offsets[some], self.firsts[some], self.parts[some], self.paths)

    @property
    def places(self) -> RowRanges:
        """The places of the rows."""
        return RowRanges(self.runs["place"], self.runs["place"] + self.runs["rows"])

    def tables(self, without: RowRanges | None = None) -> Iterator[Any]:
        """The rows as tables, in input order, without duplicates and without the rows at some places."""
        stream = lru_cache(_STREAMS_AT_ONCE)(_stream_at)  # rows of several streams may interleave
        at, start, stop = ("", 0), 0, 0
        for place, rows, offset, first, part in self._news():
            for begin, end in _rest(place, rows, without):
                # Extend the current slice for as long as rows follow each other in one stream.
                if (self.paths[part], offset) != at or first + begin != stop:
                    if stop:
                        yield stream(*at).slice(start, stop - start)
                    at, start = (self.paths[part], offset), first + begin
                stop = first + end
        if stop:
            yield stream(*at).slice(start, stop - start)

    def _news(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Place, rows, offset, first and part of each run, without rows that an earlier run has."""
        stop = 0
        columns = (self.runs["place"], self.runs["rows"], self.offsets, self.firsts, self.parts)
        for chunk in range(0, len(self.runs), _CHUNK_RECORDS):
            records = zip(*(column[chunk : chunk + _CHUNK_RECORDS].tolist() for column in columns), strict=True)
            for place, rows, offset, first, part in records:
                known = max(0, stop - place)
                if known < rows:
                    stop = place + rows
                    yield place + known, rows - known, offset, first + known, part


class DurableRows(NamedTuple):
    """Predictions and dead letters, in input order."""

    good: DurableParts
    bad: DurableParts

    @classmethod
    def find(cls, folder: str) -> DurableRows:
        """Those in a folder."""
        return cls(*(DurableParts.find(folder, predictions=kind) for kind in (True, False)))

    def of(self, source: int) -> DurableRows:
        """Those of one source."""
        return DurableRows(self.good.of(source), self.bad.of(source))

    def tables(self, *, predictions: bool) -> Iterator[Any]:
        """The rows of one kind."""
        if predictions:
            return self.good.tables()
        good, bad = self.good.places, self.bad.places
        # A runner may have repeated a bundle that then failed.
        return self.bad.tables(without=good if len(good | bad) < len(good) + len(bad) else None)

    @property
    def places(self) -> OutputPlaces:
        """Where the predictions are in the output."""
        found = self.good.places
        return OutputPlaces(zip(found.starts, found.stops - found.starts, strict=True))


def recover(folder: str) -> None:
    """Makes rows durable that processes had paid for when they were killed."""
    for kind, extension in KINDS.items():
        paths = journals(f"{glob.escape(folder)}/*.{extension}")
        if not paths:
            continue
        known = DurableParts.find(folder, predictions=kind).places
        part = DurablePartWriter(folder, predictions=kind)
        for line in chain.from_iterable(map(read_journal, paths)):
            if line.place not in known:
                part.write_line(line, extension)
        part.finish()
        for path in paths:
            remove_journal(path)


def _rest(place: int, rows: int, without: RowRanges | None) -> Iterator[tuple[int, int]]:
    """Ranges of the rows of a run, counted from its first one, that are not left out."""
    if without is None:
        yield 0, rows
        return
    for number in range(rows):
        if place + number not in without:
            yield number, number + 1


def _merged(runs: Runs) -> Runs:
    """Joins neighbouring runs."""
    merged: Runs = []
    for place, rows in runs:
        if merged and place == sum(merged[-1]):
            merged[-1] = (merged[-1][0], merged[-1][1] + rows)
        else:
            merged.append((place, rows))
    return merged


def _create(path: str) -> BinaryIO:
    return open(path, "xb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _runs_of(path: str) -> Any:
    """The valid records of a part."""
    try:
        content, size = _read(path + _SUFFIX), os.path.getsize(path)
    except FileNotFoundError:  # killed between creating the two
        return numpy.empty(0, _RECORD)
    runs = numpy.frombuffer(content[: len(content) // _RECORD.itemsize * _RECORD.itemsize], _RECORD)
    good = (runs["rows"] > 0) & (runs["bytes"] >= 0) & (numpy.cumsum(runs["bytes"]) <= size)
    runs = runs if good.all() else runs[: int(good.argmin())]
    ends = numpy.flatnonzero(runs["bytes"])  # whole streams only
    return runs[: int(ends[-1]) + 1 if len(ends) else 0]


def _offsets(runs: Any) -> Any:
    return numpy.cumsum(runs["bytes"]) - runs["bytes"]


def _firsts(runs: Any) -> Any:
    before = numpy.cumsum(runs["rows"]) - runs["rows"]
    begins = numpy.roll(runs["bytes"] > 0, 1)  # the run before ended a stream
    return before - numpy.maximum.accumulate(numpy.where(begins, before, 0))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _stream_at(path: str, offset: int) -> Any:
    with pyarrow.memory_map(path) as file:
        file.seek(offset)
        return table_of(pyarrow.ipc.open_stream(file))
