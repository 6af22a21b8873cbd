"""The file in which a batch directory keeps what was sent to a provider's Batch API, and what came back.

SQLite keeps each change whole, whichever process is killed when. A batch is written down before it is sent; until the
provider's id follows, nobody knows whether it has arrived.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.core.sqlite_files import create_for_owner, legible_errors, log_ahead

_BUSY_SECS = 60.0
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
"""A number is never reused: a process may still wait for a batch that another has forgotten. The query checks that the
tables are ours."""


class Line(NamedTuple):
    """What a provider says of one request."""

    id: str
    """Our id of the request."""
    status: int | None
    """As of HTTP; None: the batch ended before its turn."""
    body: str
    """JSON, as in the answer to a single request; without a status the reason."""
    is_new: bool = False
    """Whether it is handed out for the first time; else what it cost was counted before."""


class Announced(NamedTuple):
    """A batch that may have been sent or not."""

    number: int
    token: str
    """Sent along, where the provider keeps it."""
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
        self._path = os.path.join(directory, "batches.db")
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
        """Notes the provider's id of a batch."""
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
            if database.execute("UPDATE batches SET ended = 1 WHERE number = ? AND NOT ended", (number,)).rowcount:
                rows = ((line.status, line.body, line.id, number) for line in lines)
                database.executemany("UPDATE requests SET status = ?, body = ? WHERE id = ? AND batch = ?", rows)

    def lines(self, number: int) -> list[Line]:
        """The answers of a batch; requests without one have no status."""
        with self._opened() as database:
            rows = database.execute("SELECT id, status, coalesce(body, '') FROM requests WHERE batch = ?", (number,))
            return [Line(*row) for row in rows]

    def look_up(self, ids: Iterable[str]) -> tuple[list[Line], list[Sent], set[str]]:
        """The good answers, the batches at the provider that hold other requests, and the ids of all these requests."""
        wanted = set(ids)
        with self._opened() as database:
            found = database.execute(
                "SELECT id, status, coalesce(body, '') FROM requests WHERE status = 200 "
                "AND id IN (SELECT value FROM json_each(?)) GROUP BY id",
                _as_json(wanted),
            )
            lines = [Line(*row) for row in found]
            known = {line.id for line in lines}
            pending = database.execute(
                "SELECT id, number, remote FROM requests JOIN batches ON batch = number "
                "WHERE NOT ended AND remote NOT NULL AND id IN (SELECT value FROM json_each(?))",
                _as_json(wanted - known),
            ).fetchall()
        batches = sorted({Sent(number, remote) for _, number, remote in pending})
        return lines, batches, known.union(row[0] for row in pending)

    def announced(self, ids: Iterable[str]) -> list[Announced]:
        """The batches that may have been sent or not, as far as they have one of these requests."""
        with self._opened() as database:
            found = database.execute(
                "SELECT number, token, announced, "
                "(SELECT json_group_array(id) FROM requests WHERE batch = number) FROM batches WHERE remote IS NULL "
                "AND number IN (SELECT batch FROM requests WHERE id IN (SELECT value FROM json_each(?)))",
                _as_json(ids),
            ).fetchall()
            others = frozenset(one for (one,) in database.execute("SELECT remote FROM batches WHERE remote NOT NULL"))
        return [
            Announced(number, token, at, frozenset(json.loads(members)), others) for number, token, at, members in found
        ]

    def count(self, ids: Iterable[str]) -> set[str]:
        """Notes that answers to these requests are handed out; returns those that were not before."""
        mine, wanted = uuid.uuid4().hex, _as_json(ids)
        with self._opened() as database:
            database.execute(
                "UPDATE requests SET counted_by = ? "
                "WHERE status = 200 AND counted_by IS NULL AND id IN (SELECT value FROM json_each(?))",
                (mine, *wanted),
            )
            counted = "SELECT id FROM requests WHERE counted_by = ? AND id IN (SELECT value FROM json_each(?))"
            return {one for (one,) in database.execute(counted, (mine, *wanted))}

    def refuse(self, ids: Iterable[str]) -> None:
        """Forgets answers that could not be used: the next one with the same request asks again."""
        with self._opened() as database:
            database.execute(
                "UPDATE requests SET status = NULL, body = NULL "
                "WHERE status = 200 AND id IN (SELECT value FROM json_each(?))",
                _as_json(ids),
            )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are made together, and that reads what is there at one moment."""
        try:
            with legible_errors(), closing(sqlite3.connect(self._path, _BUSY_SECS)) as database, database:
                database.text_factory = lambda data: data.decode(errors="replace")  # damage concerns its request only
                database.execute("BEGIN")  # else each query would begin when it runs
                yield database
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise unusable(self._directory, error) from error


def _as_json(ids: Iterable[str]) -> tuple[str]:
    """Any number of ids as the only parameter of a query."""
    return (json.dumps([*ids]),)


def unusable(directory: str, error: Exception) -> ConfigurationError:
    """The error about a folder whose files cannot be used."""
    return ConfigurationError(
        f"batch_directory={directory!r} cannot be used: {error}. Name another folder of your own, on a local disk; "
        "what was sent with this one is then sent again."
    )
