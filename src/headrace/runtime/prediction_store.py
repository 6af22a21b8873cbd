"""A file of values by key, safe for many threads and processes; the oldest values leave when it is full.

SQLite does the work: what is written is complete or not there at all, whichever process is killed when.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice

from headrace.core.errors import ConfigurationError
from headrace.core.sqlite_files import create_for_owner, legible_errors, log_ahead

_APPLICATION = 0x48524331
"""Marks the file as ours."""
_BUSY_SECS = 30.0
"""How long a write waits for those of other processes."""
_AT_ONCE = 500
_LEAST_BYTES = 1 << 20
_FREED = 0.1
"""The share of a full file that is freed at a time."""
_INHERITED: list[sqlite3.Connection | None] = []
"""Connections of the process that this one was forked from: closing them here would upset its own."""


class PredictionStore:
    """Values by key. Thread-safe; a forked child opens the file again.

    Args:
        path: of the file; it is created, for its owner only, with the folders that are missing.
        max_bytes: the most that the values and their keys may take, at least 1 MiB.

    Raises:
        ConfigurationError: by any method, the file cannot be opened; the message says why.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max(max_bytes, _LEAST_BYTES)
        self._database: sqlite3.Connection | None = None
        self._begin()

    def open(self) -> None:
        """Opens the file, which is else done for the first use."""
        with self._opened():
            pass

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values that are there, by key.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        found: dict[bytes, bytes] = {}
        wanted = iter(set(keys))
        while some := list(islice(wanted, _AT_ONCE)):
            marks = ",".join("?" * len(some))
            with self._opened() as database:
                found.update(database.execute(f"SELECT key, value FROM predictions WHERE key IN ({marks})", some))  # noqa: S608 - marks are ?
        return found

    def put(self, values: Sequence[tuple[bytes, bytes]]) -> None:
        """Writes values, all or none.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                self._make_room(database, sum(len(key) + len(value) for key, value in values))
                database.executemany("INSERT OR REPLACE INTO predictions VALUES (?, ?)", values)
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    def check(self) -> None:
        """Raises sqlite3.Error if the file cannot be written now; if it is open already, waits for a moment only."""
        with self._opened() as database:
            database.execute("PRAGMA busy_timeout = 100")
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            finally:
                database.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECS * 1000)}")

    def close(self) -> None:
        """Closes the file; the next use opens it again."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._database = None

    def _make_room(self, database: sqlite3.Connection, needed: int) -> None:
        """Deletes what was written first, if the file would become too large."""
        while (used := _used_bytes(database)) and used + needed > self._max_bytes:
            (count,) = database.execute("SELECT count(*) FROM predictions").fetchone()
            if not count:
                return
            oldest = "SELECT rowid FROM predictions ORDER BY rowid LIMIT ?"
            database.execute(f"DELETE FROM predictions WHERE rowid IN ({oldest})", [max(1, int(count * _FREED))])  # noqa: S608 - both are ours

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, which only one thread at a time may use."""
        if self._process != os.getpid():  # a lock that another thread held, and SQLite's connections, survive no fork
            _INHERITED.append(self._database)
            self._begin()
        with self._lock, legible_errors():
            if self._database is None:
                self._database = _open(self._path)
            yield self._database


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _open(path: str) -> sqlite3.Connection:
    with ExitStack() as undo:
        try:
            _refuse_unsafe(path)
            database = sqlite3.connect(path, _BUSY_SECS, isolation_level=None, check_same_thread=False)
            undo.callback(database.close)
            with legible_errors():
                _set_up(database, path)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, str(error)) from error
        undo.pop_all()
        return database


def _refuse_unsafe(path: str) -> None:
    """Creates the file; refuses one that others can write: it holds pickles, which run code when they are read.

    So does SQLite's log beside it, which in a folder that anybody can write might be somebody else's.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    create_for_owner(path)
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise _unusable(path, "it is a directory or a device, not a file")
    if not hasattr(os, "geteuid"):  # Windows
        return
    if found.st_uid != os.geteuid():
        raise _unusable(path, f"it belongs to user {found.st_uid}, and this process to user {os.geteuid()}")
    if os.stat(folder).st_mode & 0o002:
        raise _unusable(path, f"anybody can write its folder; make one of your own: mkdir -m 700 {folder}/mine")
    if found.st_mode & 0o022:
        raise _unusable(path, f"other users can write it; if you trust what is in it, run: chmod 600 {path}")


def _set_up(database: sqlite3.Connection, path: str) -> None:
    database.text_factory = bytes  # whatever is there instead of bytes must not end a query
    database.execute("BEGIN IMMEDIATE")  # another process may be about to set it up
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != _APPLICATION:
        raise _unusable(path, "it is another program's database")
    if not tables:
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute("CREATE TABLE predictions (key BLOB PRIMARY KEY, value BLOB NOT NULL)")
    database.execute("COMMIT")
    log_ahead(database, _BUSY_SECS)
    database.execute("PRAGMA synchronous = NORMAL")  # a loss of power may cost the last few values, nothing else


def _unusable(path: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"cache={path!r} cannot be used: {reason.rstrip('.')}. Delete the file, or name another one, on a local disk."
    )
