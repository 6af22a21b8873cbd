"""How files of SQLite are opened that the threads and processes of a machine share."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PAUSE_SECS = 0.02
_CREATING = threading.Lock()


def create_for_owner(path: str) -> None:
    """Creates an empty file that nobody else may read, unless it is there."""
    with _CREATING, suppress(FileExistsError):  # to close a file that this process has open loses SQLite's locks on it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def log_ahead(database: sqlite3.Connection, busy_secs: float) -> None:
    """Has readers not wait for writers. If another process begins to write just then, SQLite does not wait for it."""
    deadline = time.monotonic() + busy_secs
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECS)  # SQLite has no call that waits for this lock
        else:
            return


@contextmanager
def legible_errors() -> Iterator[None]:
    """Raises ``sqlite3.DatabaseError`` where a file is so damaged that Python cannot even decode SQLite's message."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("it is damaged") from error
