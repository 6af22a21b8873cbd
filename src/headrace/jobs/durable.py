"""Crash-safe parts: small files, each synced to disk before it gets its name, so that a part that is there is whole."""

from __future__ import annotations

import glob
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import pyarrow
import pyarrow.ipc

from headrace.jobs.parts import KINDS, PartWriter
from headrace.jobs.publishing import sync_folder

_COMMIT_SECONDS = 1.0
_COMMIT_BYTES = 1 << 25
_OPEN = ".open"


class DurablePartWriter(PartWriter):
    """Writes parts; what it accepts is durable within about a second. Thread-safe.

    Args:
        folder: of the parts; local.
        predictions: as in ``KINDS``.
        paid: whether the operating system gets rows at once: a process that is killed loses none.
    """

    def __init__(self, folder: str, *, predictions: bool | None, paid: bool = False) -> None:
        super().__init__(folder, predictions=predictions)
        self._kind = KINDS[predictions]
        self._paid = paid
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self._commit_lock = threading.Lock()

    def finish(self) -> None:
        """Makes all durable; the parts are those that are in the folder."""
        try:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
            self._commit()
        finally:
            with suppress(OSError):  # raised before
                if self._file is not None:
                    self._file.close()

    def abandon(self) -> None:
        """Ends with a bundle that failed: its rows count."""
        with suppress(Exception):  # what failed the bundle is the error to report
            self.finish()

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Surrounds each acceptance of rows with the lock; a commit follows in time even if no more rows do."""
        with self._lock, self._at_work():
            yield
            if self._paid:
                self._settle()
                if self._file is not None:
                    self._file.flush()
            if self._timer is None:
                self._commit_after(_COMMIT_SECONDS)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Surrounds writes; after an error all further use raises that error: rows may be missing."""
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
        """Makes a part of all that waits. Other threads may go on adding rows meanwhile."""
        with self._commit_lock, self._at_work():
            with self._lock:
                self._timer = None
                self._write()
                file, self._file = self._file, None
            if file is not None:
                with file:
                    _seal(file)

    def _create(self) -> BinaryIO:
        return open(os.path.join(self._folder, f"{uuid.uuid4().hex}.{self._kind}{_OPEN}"), "xb")

    def _end_stream(self) -> None:
        """Ends the stream. The caller holds the lock."""
        super()._end_stream()
        is_much = self._file is not None and self._file.tell() > _COMMIT_BYTES  # as a disk syncs at once
        if is_much and self._timer is not None:
            self._timer.cancel()
            self._commit_after(0)


def recover(folder: str) -> None:
    """Makes parts of what processes had begun when they were killed, as far as its record batches are whole.

    Copies, since a process that is about to end may still write.
    """
    for path in glob.glob(f"{glob.escape(folder)}/*{_OPEN}"):
        with suppress(FileNotFoundError):
            with open(path, "rb") as file:
                whole = file.read(_whole_bytes(file))
            if whole:
                kind = path.removesuffix(_OPEN).rpartition(".")[2]
                with open(os.path.join(folder, f"{uuid.uuid4().hex}.{kind}{_OPEN}"), "xb") as copy:
                    copy.write(whole)
                    _seal(copy)
            os.remove(path)


def _seal(file: BinaryIO) -> None:
    """Gives a file that is written its name as a part."""
    file.flush()
    os.fsync(file.fileno())
    os.rename(file.name, file.name.removesuffix(_OPEN))
    sync_folder(os.path.dirname(file.name))


def _whole_bytes(file: BinaryIO) -> int:
    """The size of the record batches at the beginning of a file; leaves it at its beginning."""
    size = 0
    with suppress(pyarrow.ArrowInvalid, EOFError, OSError):  # the end of the file, or of what is whole
        while True:
            has_rows = False
            for _ in pyarrow.ipc.open_stream(file):
                has_rows, size = True, file.tell()
            size = file.tell() if has_rows else size
    file.seek(0)
    return size
