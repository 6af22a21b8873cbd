"""Crash-safe parts: small files, each synced to disk before it gets its name, so that a part that is there is whole.

Rows that were paid for are in a journal until then.
"""

from __future__ import annotations

import glob
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import BinaryIO

from headrace.jobs.journal import Journal, journals, read_journal, remove_journal
from headrace.jobs.output_batches import OutputLine, OutputRows, as_lines
from headrace.jobs.parts import KINDS, PartWriter
from headrace.jobs.publishing import sync_folder
from headrace.jobs.stored_rows import StoredRows

_COMMIT_SECONDS = 1.0
_COMMIT_BYTES = 1 << 25
_OPEN = ".open"


class DurablePartWriter(PartWriter):
    """Writes parts; what it accepts is durable within about a second. Thread-safe.

    Args:
        folder: of the parts; local.
        predictions: as in ``KINDS``.
        keep: the input columns to output; None: all.
        paid: whether rows are in a journal at once, which outlives a process that is killed.
    """

    def __init__(
        self, folder: str, *, predictions: bool | None, keep: tuple[str, ...] | None = None, paid: bool = False
    ) -> None:
        super().__init__(folder, predictions=predictions, keep=keep)
        self._kind = KINDS[predictions]
        self._journal = Journal(self._path) if paid else None
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self._commit_lock = threading.Lock()

    def write_rows(self, some: OutputRows) -> None:
        """As ``PartWriter.write_rows``."""
        with self._lock:
            if self._journal is not None:
                self._journal.add(as_lines(some, self._keep))
            super().write_rows(some)

    def write_line(self, line: OutputLine) -> None:
        """As ``PartWriter.write_line``."""
        with self._lock:
            if self._journal is not None:
                self._journal.add([line])
            super().write_line(line)

    def finish(self) -> None:
        """Makes all durable; the parts are those that are in the folder."""
        try:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
            self._commit()
        finally:
            if self._journal is not None:
                self._journal.end()  # what a commit that failed has left stays
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
                noted = None if self._journal is None else self._journal.end()
            if file is None:
                return
            with file:
                file.flush()
                os.fsync(file.fileno())
            os.rename(file.name, file.name.removesuffix(_OPEN))
            sync_folder(self._folder)
            remove_journal(noted)

    def _create(self) -> BinaryIO:
        return open(os.path.join(self._folder, f"{uuid.uuid4().hex}.{self._kind}{_OPEN}"), "xb")

    def _end_stream(self) -> None:
        """Ends the stream. The caller holds the lock."""
        super()._end_stream()
        is_much = self._file is not None and self._file.tell() > _COMMIT_BYTES  # as a disk syncs at once
        if is_much and self._timer is not None:
            self._timer.cancel()
            self._commit_after(0)


def remove_open(folder: str) -> None:
    """Removes what processes had begun when they were killed."""
    for path in glob.glob(f"{glob.escape(folder)}/*{_OPEN}"):
        with suppress(FileNotFoundError):
            os.remove(path)


def recover(folder: str) -> None:
    """Makes rows durable that processes had paid for when they were killed."""
    for kind, extension in KINDS.items():
        paths = journals(f"{glob.escape(folder)}/*.{extension}")
        if not paths:
            continue
        known = StoredRows.find(folder, predictions=kind).places
        part = DurablePartWriter(folder, predictions=kind)
        for line in chain.from_iterable(map(read_journal, paths)):
            if line.place not in known:
                part.write_line(line)
        part.finish()
        for path in paths:
            remove_journal(path)
