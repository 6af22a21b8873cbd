"""Crash-safe part files: which rows they hold is known even if the process is killed or power is lost.

Each part has an index file beside it, with one record for each run of neighbouring rows: place, number of rows, bytes.
In a columnar part several runs form a stream: the last run's record holds the bytes of the stream, the others hold 0. A
part is synced to disk before its index is, so every complete record in the index is true.
"""

from __future__ import annotations

import glob
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple

import numpy

from headrace.jobs.json_lines import as_line
from headrace.jobs.parts import BLOCKS, KINDS, OutputPart
from headrace.jobs.publishing import sync_folder
from headrace.jobs.row_ranges import RowRanges

_CHUNK_BYTES = 1 << 20
_CHUNK_RECORDS = 100_000
_COMMIT_SECONDS = 1.0
_COMMIT_BYTES = 1 << 25
_RECORD = numpy.dtype([("place", "<i8"), ("rows", "<i8"), ("bytes", "<i8")])
_SUFFIX = ".index"


class DurableWriter:
    """Writes a part and its index; what it accepts is durable within about a second. Thread-safe.

    A derived class accepts data within ``_taking``, and writes pending data in ``_flush``.

    Args:
        path: of the part, in a local folder; created once there is something to write.
        predictions: as in ``OutputPart``.
    """

    def __init__(self, path: str, *, predictions: bool | None) -> None:
        self._path = path
        self._predictions = predictions
        self._counts: dict[str, int] = {}
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self._runs: list[list[int]] = []
        self._unsafe_bytes = 0
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._commit_lock = threading.Lock()

    def finish(self) -> OutputPart | None:
        """Closes the part durably; None if nothing was written."""
        try:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
            self._commit()
        finally:
            for file in self._files or ():
                with suppress(OSError):  # raised before; all that counts is on disk
                    file.close()
        return OutputPart(self._predictions, self._path, self._counts) if self._files else None

    @property
    def _is_empty(self) -> bool:
        """Whether no data is pending."""
        raise NotImplementedError

    def _flush(self, file: BinaryIO) -> list[list[int]]:
        """Writes the pending data; returns place, rows and bytes of each run in it."""
        raise NotImplementedError

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Surrounds each acceptance of data with the lock; a commit follows in time even if no more data does."""
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
        """Makes pending data durable: part first, then index. Other threads may go on adding data meanwhile."""
        with self._commit_lock, self._at_work():
            with self._lock:
                self._timer = None
                self._write()
                runs, self._runs, self._unsafe_bytes = self._runs, [], 0
            if not runs or self._files is None:
                return
            part, index = self._files
            _sync(part)
            index.write(numpy.array([tuple(run) for run in runs], dtype=_RECORD).tobytes())
            _sync(index)

    def _write(self) -> None:
        """Writes pending data. The caller holds the lock."""
        if self._is_empty:
            return
        if self._files is None:
            self._files = _create(self._path), _create(self._path + _SUFFIX)
            sync_folder(os.path.dirname(self._path))
        runs = self._flush(self._files[0])
        self._runs += runs
        self._unsafe_bytes += sum(size for _, _, size in runs)
        if self._unsafe_bytes > _COMMIT_BYTES and self._timer is not None:  # as much as a disk syncs at once
            self._timer.cancel()
            self._unsafe_bytes = 0
            self._commit_after(0)


class DurablePartWriter(DurableWriter):
    """Writes JSON lines into a part file, which the first line creates.

    Args:
        folder: of the parts; local.
        predictions: as in ``OutputPart``.
    """

    def __init__(self, folder: str, *, predictions: bool | None) -> None:
        kind = _kinds(predictions=predictions)[0]
        super().__init__(os.path.join(folder, f"{uuid.uuid4().hex}{kind}"), predictions=predictions)
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = 0

    def write(self, record: Mapping[str, Any], what: str, place: int) -> None:
        """Adds a line, counted under ``what``."""
        line = as_line(record)
        with self._taking():
            self._waiting.append((place, line))
            self._waiting_bytes += len(line)
            self._counts[what] = self._counts.get(what, 0) + 1
            if self._waiting_bytes > _CHUNK_BYTES:
                self._write()

    @property
    def _is_empty(self) -> bool:
        return not self._waiting

    def _flush(self, file: BinaryIO) -> list[list[int]]:
        self._waiting.sort()  # undo sorting by length, so that neighbours form runs
        file.write(b"".join([line for _, line in self._waiting]))
        runs = runs_of((place, 1, len(line)) for place, line in self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        return runs


class DurableParts(NamedTuple):
    """The runs of rows in all parts of one kind in a folder, in input order."""

    runs: Any
    """An array of (place, rows, bytes)."""
    offsets: Any
    """Where in its part each run begins, or the stream that contains it."""
    firsts: Any
    """How many rows precede each run in its stream."""
    parts: Any
    """Index of each run's part."""
    paths: list[str]
    """Of the parts."""

    @classmethod
    def find(cls, folder: str, *, predictions: bool | None) -> DurableParts:
        """Reads the indexes in a folder; ignores incomplete records, and records of lines that are not complete."""
        escaped = glob.escape(folder)
        paths = sorted(path for kind in _kinds(predictions=predictions) for path in glob.glob(f"{escaped}/*{kind}"))
        found = [_runs_of(path) for path in paths]
        numbers = [numpy.full(len(runs), number) for number, runs in enumerate(found)]
        runs = numpy.concatenate([numpy.empty(0, _RECORD), *found])
        order = numpy.argsort(runs["place"], kind="stable")
        offsets, firsts, parts = (
            numpy.concatenate([numpy.empty(0, numpy.int64), *each])[order]
            for each in (map(_offsets, found), map(_firsts, found), numbers)
        )
        return cls(runs[order], offsets, firsts, parts, paths)

    @property
    def places(self) -> RowRanges:
        """The places of the rows."""
        return RowRanges(self.runs["place"], self.runs["place"] + self.runs["rows"])

    def without(self, places: RowRanges) -> DurableParts:
        """The runs without the rows at these places; reads the parts line by line."""
        found: list[tuple[tuple[int, int, int], int, int]] = []
        for place, rows, _, start, _, part in self.records():
            offset = start
            with open(self.paths[part], "rb") as file:
                file.seek(offset)
                for n in range(rows):
                    size = len(file.readline())
                    if place + n not in places:
                        found.append(((place + n, 1, size), offset, part))
                    offset += size
        runs, offsets, parts = ([entry[column] for entry in found] for column in range(3))
        none = numpy.zeros(len(runs), numpy.int64)
        return DurableParts(
            numpy.array(runs, _RECORD), numpy.array(offsets, "i8"), none, numpy.array(parts, "i8"), self.paths
        )

    def join(self, path: str, check: Callable[[], None]) -> int:
        """Writes the lines of all rows into one file, in input order, without duplicates; returns their number.

        Args:
            path: of the file.
            check: called repeatedly; an exception from it stops the work.
        """
        rows, current, source = 0, -1, None
        try:
            with open(path, "wb") as file:
                for extent in self._extents():
                    check()
                    if source is None or extent.part != current:
                        source = _reopened(source, self.paths[extent.part])
                        current = extent.part
                    source.seek(extent.offset)
                    _copy(source, file, extent, check)
                    rows += extent.rows
        finally:
            if source is not None:
                source.close()
        return rows

    def _extents(self) -> Iterator[_Extent]:
        """What to copy; runs that are adjacent in a part are merged."""
        extent = _Extent(-1, 0, 0, 0)
        for known, (_, rows, size, offset, _, part) in self.news():
            if part == extent.part and offset == extent.offset + extent.bytes and not known:
                extent = extent._replace(bytes=extent.bytes + size, rows=extent.rows + rows)
                continue
            if extent.rows:
                yield extent
            extent = _Extent(part, offset, size, rows - known, known)
        if extent.rows:
            yield extent

    def news(self) -> Iterator[tuple[int, tuple[int, int, int, int, int, int]]]:
        """Each run with rows that no earlier run has, preceded by how many of its first rows earlier runs have."""
        end = 0
        for record in self.records():
            place, rows, *_ = record
            known = max(0, end - place)
            if known < rows:
                end = place + rows
                yield known, record

    def records(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Place, rows, bytes, offset, first and part of each run; converted to Python integers in chunks."""
        columns = (self.runs["place"], self.runs["rows"], self.runs["bytes"], self.offsets, self.firsts, self.parts)
        for start in range(0, len(self.runs), _CHUNK_RECORDS):
            yield from zip(*(column[start : start + _CHUNK_RECORDS].tolist() for column in columns), strict=True)


class _Extent(NamedTuple):
    part: int
    offset: int
    bytes: int
    rows: int
    known: int = 0
    """How many lines at the beginning to skip, since another extent has them."""


def runs_of(pieces: Iterable[tuple[int, int, int]]) -> list[list[int]]:
    """Merges neighbouring pieces of (place, rows, bytes) into runs."""
    runs: list[list[int]] = []
    for place, rows, size in pieces:
        if runs and place == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += rows
            runs[-1][2] += size
        else:
            runs.append([place, rows, size])
    return runs


def _kinds(*, predictions: bool | None) -> tuple[str, ...]:
    """The file name extensions of parts of one kind: lines, and columns if there are any."""
    return (f".{KINDS[predictions]}", *([BLOCKS] if predictions else []))


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


def _reopened(before: BinaryIO | None, path: str) -> BinaryIO:
    if before is not None:
        before.close()
    return open(path, "rb")


def _copy(source: BinaryIO, file: BinaryIO, extent: _Extent, check: Callable[[], None]) -> None:
    left = extent.bytes
    for _ in range(extent.known):
        left -= len(source.readline())
    while left:
        check()
        chunk = source.read(min(left, _CHUNK_BYTES))
        if not chunk:
            raise OSError(f"{source.name} became shorter while it was read")
        file.write(chunk)
        left -= len(chunk)
