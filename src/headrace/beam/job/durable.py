"""Parts of which it is known, whatever becomes of their process, which rows are in them.

Beside a part, which holds lines, lies its index: a record for each run of neighbouring rows, with their place, their
number and the bytes of their lines. Lines are on the disk before their record is, and so what the index says is true
after a kill at any moment, and after a loss of power.
"""

from __future__ import annotations

import glob
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple

import numpy

from headrace.beam.job.output import Part, as_line
from headrace.beam.job.positions import Places

_CHUNK_BYTES = 1 << 20
_CHUNK_RECORDS = 100_000
_COMMIT_SECONDS = 1.0
_RECORD = numpy.dtype([("place", "<i8"), ("rows", "<i8"), ("bytes", "<i8")])
_SUFFIX = ".index"


class DurablePartWriter:
    """Writes lines into one part, a file that is made for the first of them; what is written is durable in a second.

    Threads may share it.

    Args:
        folder: for parts; local.
        predictions: whether the lines are predictions; else dead letters.
    """

    def __init__(self, folder: str, *, predictions: bool) -> None:
        self._path = os.path.join(folder, f"{uuid.uuid4().hex}.{_kind(predictions=predictions)}")
        self._predictions = predictions
        self._counts: dict[str, int] = {}
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = 0
        self._runs: list[list[int]] = []
        self._timer: threading.Timer | None = None
        self._error: OSError | None = None
        self._lock = threading.Lock()

    def write(self, record: Mapping[str, Any], what: str, place: int) -> None:
        """Writes a line; ``what`` it is counted as."""
        line = as_line(record)
        with self._at_work():
            self._waiting.append((place, line))
            self._waiting_bytes += len(line)
            self._counts[what] = self._counts.get(what, 0) + 1
            if self._waiting_bytes > _CHUNK_BYTES:
                self._flush()
            if self._timer is None:  # for what waits while a batch takes long
                self._timer = threading.Timer(_COMMIT_SECONDS, self._commit_in_time)
                self._timer.daemon = True
                self._timer.start()

    def finish(self) -> Part | None:
        """Closes the part, durably; None where nothing was written."""
        try:
            with self._at_work():
                if self._timer is not None:
                    self._timer.cancel()
                self._commit()
        finally:
            for file in self._files or ():
                with suppress(OSError):  # which has been raised already: all that counts is on the disk
                    file.close()
        return Part(self._predictions, self._path, self._counts) if self._files else None

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """For one thread at a time, until an error: how much of what was being written is in the files, nobody knows.

        What was added then might not lie where its record says.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                yield
            except OSError as error:
                self._error = error
                raise

    def _commit_in_time(self) -> None:
        with suppress(OSError), self._at_work():  # the thread that writes will hear of it
            self._timer = None
            self._commit()

    def _commit(self) -> None:
        if self._waiting:
            self._flush()
        if self._files is None or not self._runs:
            return
        lines, index = self._files
        _sync(lines)
        index.write(numpy.array([tuple(run) for run in self._runs], dtype=_RECORD).tobytes())
        _sync(index)
        self._runs = []

    def _flush(self) -> None:
        if self._files is None:
            self._files = _create(self._path), _create(self._path + _SUFFIX)
            sync_folder(os.path.dirname(self._path))
        self._waiting.sort()  # what was sorted by length becomes neighbours again
        self._files[0].write(b"".join([line for _, line in self._waiting]))
        for place, line in self._waiting:
            run = self._runs[-1] if self._runs else None
            if run is not None and place == run[0] + run[1]:
                run[1] += 1
                run[2] += len(line)
            else:
                self._runs.append([place, 1, len(line)])
        self._waiting, self._waiting_bytes = [], 0


class DurableParts(NamedTuple):
    """The runs of rows in all parts of a kind that lie in a folder, in the order of the input."""

    runs: Any
    """An array of place, rows and bytes."""
    offsets: Any
    """Where in its part each begins."""
    parts: Any
    """Index of the part of each."""
    paths: list[str]
    """Of the parts."""

    @classmethod
    def find(cls, folder: str, *, predictions: bool) -> DurableParts:
        """Reads the indexes in a folder; a record that is cut off, or of lines that are, is none."""
        paths = sorted(glob.glob(os.path.join(glob.escape(folder), f"*.{_kind(predictions=predictions)}")))
        runs, offsets, parts = [numpy.empty(0, _RECORD)], [numpy.empty(0, numpy.int64)], [numpy.empty(0, numpy.int64)]
        for number, path in enumerate(paths):
            found = _runs_of(path)
            runs.append(found)
            offsets.append(numpy.cumsum(found["bytes"]) - found["bytes"])
            parts.append(numpy.full(len(found), number))
        joined = numpy.concatenate(runs)
        order = numpy.argsort(joined["place"], kind="stable")
        return cls(joined[order], numpy.concatenate(offsets)[order], numpy.concatenate(parts)[order], paths)

    @property
    def places(self) -> Places:
        """Those of the rows."""
        return Places(self.runs["place"], self.runs["place"] + self.runs["rows"])

    def without(self, places: Places) -> DurableParts:
        """The runs of the rows at other places; their lines are looked at one by one."""
        found: list[tuple[tuple[int, int, int], int, int]] = []
        for place, rows, _, start, part in self._records():
            offset = start
            with open(self.paths[part], "rb") as file:
                file.seek(offset)
                for n in range(rows):
                    size = len(file.readline())
                    if place + n not in places:
                        found.append(((place + n, 1, size), offset, part))
                    offset += size
        runs, offsets, parts = ([entry[column] for entry in found] for column in range(3))
        return DurableParts(
            numpy.array(runs, _RECORD), numpy.array(offsets, numpy.int64), numpy.array(parts, numpy.int64), self.paths
        )

    def join(self, path: str, check: Callable[[], None]) -> int:
        """Writes the lines of all rows into one file, in the order of the input, each row once; returns their number.

        Args:
            path: of the file.
            check: called again and again; whatever it raises ends the work.
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
        """What is to be copied; runs that lie one behind the other at once."""
        extent, end = _Extent(-1, 0, 0, 0), 0
        for place, rows, size, offset, part in self._records():
            known = max(0, end - place)
            if known >= rows:
                continue
            end = place + rows
            if part == extent.part and offset == extent.offset + extent.bytes and not known:
                extent = extent._replace(bytes=extent.bytes + size, rows=extent.rows + rows)
                continue
            if extent.rows:
                yield extent
            extent = _Extent(part, offset, size, rows - known, known)
        if extent.rows:
            yield extent

    def _records(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Place, rows, bytes, offset and part of each run; as Python's integers, which take memory, some at a time."""
        columns = (self.runs["place"], self.runs["rows"], self.runs["bytes"], self.offsets, self.parts)
        for start in range(0, len(self.runs), _CHUNK_RECORDS):
            yield from zip(*(column[start : start + _CHUNK_RECORDS].tolist() for column in columns), strict=True)


class _Extent(NamedTuple):
    part: int
    offset: int
    bytes: int
    rows: int
    known: int = 0
    """Lines at its beginning that another one has, too, before the ``rows`` that are wanted."""


def sync_folder(path: str) -> None:
    """Makes durable which files there are in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _kind(*, predictions: bool) -> str:
    return "predictions" if predictions else "letters"


def _create(path: str) -> BinaryIO:
    return open(path, "xb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _runs_of(path: str) -> Any:
    """The records of a part as far as they hold."""
    try:
        content, size = _read(path + _SUFFIX), os.path.getsize(path)
    except FileNotFoundError:  # killed between the making of the two
        return numpy.empty(0, _RECORD)
    runs = numpy.frombuffer(content[: len(content) // _RECORD.itemsize * _RECORD.itemsize], _RECORD)
    good = (runs["rows"] > 0) & (runs["bytes"] > 0) & (numpy.cumsum(runs["bytes"]) <= size)
    return runs if good.all() else runs[: int(good.argmin())]


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
