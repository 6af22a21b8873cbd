"""The file in which a batch directory keeps what was sent to a provider's Batch API, and what came back.

SQLite keeps each change whole, whichever process is killed when. A batch is written down before it is sent; until the
provider's id follows, nobody knows whether it has arrived.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.core.sqlite_files import create_for_owner, legible_errors, log_ahead

__all__ = ["LOCK", "Announced", "BatchStore", "Line", "Sent", "unusable"]

_BUSY_SECS = 60.0
_FILE = "batches.db"
LOCK = "lock"
"""The file by which processes send one after the other."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT NOT NULL, announced REAL NOT NULL, remote TEXT,
    ended INTEGER DEFAULT 0
);
CREATE TABLE IF NOT EXISTS requests (
    id TEXT NOT NULL, batch INTEGER NOT NULL, status INTEGER, body TEXT, counted_by TEXT
);
CREATE INDEX IF NOT EXISTS requests_by_id ON requests (id, batch);
CREATE INDEX IF NOT EXISTS requests_by_batch ON requests (batch);
SELECT token, announced, remote, ended, status, body, counted_by FROM batches JOIN requests ON batch = number LIMIT 0;
"""
"""A number is never given again: who waits for a batch that others have forgotten must not mean another one by it. The
query finds out whether the tables are ours."""
_OK = 200


class Line(NamedTuple):
    """What a provider says of one request."""

    id: str
    """Ours of the request."""
    status: int | None
    """HTTP's; None: the batch ended before its turn."""
    body: str
    """JSON, as the answer to a single request has it; without a status the reason."""


class Announced(NamedTuple):
    """A batch that may have been sent or not."""

    number: int
    token: str
    """Sent along, where the provider keeps such a thing."""
    at: float
    """When, in seconds since 1970."""
    ids: frozenset[str]
    """Of its requests."""
    elsewhere: frozenset[str]
    """The provider's ids of all other batches."""


class Sent(NamedTuple):
    """A batch at the provider whose answers nobody has collected."""

    number: int
    remote: str
    """The provider's id."""


class BatchStore:
    """Batches and their requests. Thread-safe, and safe for several processes.

    Args:
        directory: of the file; made for its owner only, if it is missing.

    Raises:
        ConfigurationError: the file cannot be used.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, _FILE)
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            create_for_owner(self._path)
            with legible_errors(), closing(sqlite3.connect(self._path, _BUSY_SECS)) as database:
                log_ahead(database, _BUSY_SECS)
                database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise unusable(directory, error) from error

    def announce(self, token: str, ids: Iterable[str]) -> int:
        """Notes that a batch of these requests is about to be sent; returns its number."""
        with self._opened() as database:
            cursor = database.execute("INSERT INTO batches (token, announced) VALUES (?, ?)", (token, time.time()))
            number = int(cursor.lastrowid or 0)
            database.executemany("INSERT INTO requests (id, batch) VALUES (?, ?)", ((one, number) for one in ids))
        return number

    def sent(self, number: int, remote: str) -> None:
        """Notes under which id the provider has a batch."""
        with self._opened() as database:
            database.execute("UPDATE batches SET remote = ? WHERE number = ?", (remote, number))

    def forget(self, number: int) -> None:
        """Forgets a batch of which the provider has done nothing."""
        with self._opened() as database:
            database.execute("DELETE FROM batches WHERE number = ?", (number,))
            database.execute("DELETE FROM requests WHERE batch = ?", (number,))

    def end(self, number: int, lines: Iterable[Line]) -> None:
        """Keeps the answers of a batch, unless another process did so before."""
        with self._opened() as database:
            ended = database.execute("UPDATE batches SET ended = 1 WHERE number = ? AND ended = 0", (number,)).rowcount
            if ended:
                rows = ((line.status, line.body, line.id, number) for line in lines)
                database.executemany("UPDATE requests SET status = ?, body = ? WHERE id = ? AND batch = ?", rows)

    def count(self, ids: Iterable[str]) -> set[str]:
        """Notes that answers to these requests are handed out; returns those to which none was before."""
        mine = uuid.uuid4().hex
        with self._wanting(ids) as database:
            database.execute(
                "UPDATE requests SET counted_by = ? "
                "WHERE status = ? AND counted_by IS NULL AND id IN (SELECT id FROM wanted)",
                (mine, _OK),
            )
            rows = database.execute("SELECT id FROM requests JOIN wanted USING (id) WHERE counted_by = ?", (mine,))
            return {one for (one,) in rows}

    def lines(self, number: int) -> list[Line]:
        """The answers of a batch that has ended; a request of which the provider said nothing has no status."""
        with self._opened() as database:
            rows = database.execute("SELECT id, status, coalesce(body, '') FROM requests WHERE batch = ?", (number,))
            return [Line(*row) for row in rows]

    def announced(self, ids: Iterable[str]) -> list[Announced]:
        """The batches that may have been sent or not, as far as they have one of these requests."""
        with self._wanting(ids) as database:
            found = database.execute(
                "SELECT DISTINCT number, token, announced FROM batches JOIN requests ON batch = number "
                "JOIN wanted USING (id) WHERE remote IS NULL"
            ).fetchall()
            others = frozenset(one for (one,) in database.execute("SELECT remote FROM batches WHERE remote NOT NULL"))
            return [
                Announced(number, token, at, frozenset(_ids_of(database, number)), others)
                for number, token, at in found
            ]

    def refuse(self, ids: Iterable[str]) -> None:
        """Forgets the answers to these requests, which could not be used: who has the same request asks again."""
        with self._wanting(ids) as database:
            database.execute(
                "UPDATE requests SET status = NULL, body = NULL WHERE status = ? AND id IN (SELECT id FROM wanted)",
                (_OK,),
            )

    def look_up(self, ids: Iterable[str]) -> tuple[list[Line], list[Sent], set[str]]:
        """What is known of requests.

        Returns:
            The answers that are there, but for errors; the batches in which others are; and the requests of either.
        """
        with self._wanting(ids) as database:
            lines = database.execute(
                "SELECT id, status, coalesce(body, '') FROM requests JOIN wanted USING (id) "
                "WHERE status = ? GROUP BY id",
                (_OK,),
            ).fetchall()
            database.executemany("DELETE FROM wanted WHERE id = ?", ((line[0],) for line in lines))
            on_their_way = database.execute(
                "SELECT DISTINCT id, number, remote FROM requests JOIN wanted USING (id) "
                "JOIN batches ON batch = number WHERE NOT ended AND remote NOT NULL"
            ).fetchall()
        known = {line[0] for line in lines} | {row[0] for row in on_their_way}
        batches = sorted({Sent(number, remote) for _, number, remote in on_their_way})
        return [Line(*line) for line in lines], batches, known

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are made together.

        Raises:
            ConfigurationError: the file is damaged.
            sqlite3.OperationalError: it is locked, or the disk is full.
        """
        try:
            with legible_errors(), closing(sqlite3.connect(self._path, _BUSY_SECS)) as database, database:
                database.text_factory = _text
                yield database
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise unusable(self._directory, error) from error

    @contextmanager
    def _wanting(self, ids: Iterable[str]) -> Iterator[sqlite3.Connection]:
        """A connection with a table of these ids."""
        with self._opened() as database:
            database.execute("CREATE TEMP TABLE wanted (id TEXT PRIMARY KEY)")
            database.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", ((one,) for one in ids))
            yield database


def _ids_of(database: sqlite3.Connection, number: int) -> list[str]:
    return [one for (one,) in database.execute("SELECT id FROM requests WHERE batch = ?", (number,))]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")  # what is damaged concerns only its own request


def unusable(directory: str, error: Exception) -> ConfigurationError:
    """The error about a folder whose files cannot be used."""
    return ConfigurationError(
        f"batch_directory={directory!r} cannot be used: {error}. Name another folder of your own, on a local disk; "
        "what was sent with this one is then sent again."
    )
