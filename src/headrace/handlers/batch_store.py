"""The file in which a batch directory keeps what was sent to a provider's Batch API, and what came back.

SQLite keeps each change whole, whichever process is killed when. A batch is written down before it is sent; until the
provider's id follows, nobody knows whether it has arrived.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.core.sqlite_files import create_for_owner, legible_errors, log_ahead

_LOGGER = logging.getLogger(__name__)
_ID = re.compile(rb'"custom_id"\s*:\s*"([^"\\]+)"')
_BUSY_SECS = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id TEXT NOT NULL, batch TEXT NOT NULL, announced REAL NOT NULL, remote TEXT, ended INTEGER DEFAULT 0,
    status INTEGER, body TEXT DEFAULT '', counted INTEGER DEFAULT 0
);
CREATE INDEX IF NOT EXISTS requests_by_id ON requests (id, batch);
CREATE INDEX IF NOT EXISTS requests_by_batch ON requests (batch);
SELECT id, batch, announced, remote, ended, status, body, counted FROM requests LIMIT 0;
"""
"""A request is there once for each batch that has it. The query checks that the table is ours."""


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


def lines_in(content: bytes, line_of: Callable[[Any], Line]) -> list[Line]:
    """The lines of a file of results. A damaged one was paid for all the same: its request's answer cannot be used."""
    lines: list[Line] = []
    for raw in filter(bytes.strip, content.split(b"\n")):
        try:
            line = line_of(json.loads(raw))
            if not isinstance(line.id, str):
                raise TypeError("the id is no text")
            lines.append(line._replace(body=line.body.encode(errors="replace").decode()))  # SQLite takes no surrogates
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            said = f"the batch's results have a damaged line: {raw[:200].decode(errors='replace')!r}"
            _LOGGER.warning("%s", said)
            lines += [Line(one.decode(errors="replace"), 200, json.dumps(said)) for one in _ID.findall(raw)]
    return lines


class Announced(NamedTuple):
    """A batch that may have been sent or not."""

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

    token: str
    remote: str
    """The provider's id."""


class BatchStore:
    """Batches, by their tokens, and their requests. Thread-safe, and safe for several processes.

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

    def announce(self, token: str, ids: Iterable[str]) -> None:
        """Notes that a batch of these requests is about to be sent."""
        rows = [(one, token, time.time()) for one in ids]
        with self._opened() as database:
            database.executemany("INSERT INTO requests (id, batch, announced) VALUES (?, ?, ?)", rows)

    def sent(self, token: str, remote: str) -> None:
        """Notes the provider's id of a batch."""
        with self._opened() as database:
            database.execute("UPDATE requests SET remote = ? WHERE batch = ?", (remote, token))

    def forget(self, token: str) -> None:
        """Forgets a batch of which the provider has done nothing."""
        with self._opened() as database:
            database.execute("DELETE FROM requests WHERE batch = ?", (token,))

    def end(self, token: str, lines: Iterable[Line]) -> None:
        """Keeps the answers of a batch, unless another process did so before."""
        with self._opened() as database:
            if database.execute("UPDATE requests SET ended = 1 WHERE batch = ? AND NOT ended", (token,)).rowcount:
                rows = ((line.status, line.body, line.id, token) for line in lines)
                database.executemany("UPDATE requests SET status = ?, body = ? WHERE id = ? AND batch = ?", rows)

    def lines(self, token: str) -> list[Line]:
        """The answers of a batch; requests without one have no status."""
        with self._opened() as database:
            rows = database.execute("SELECT id, status, body FROM requests WHERE batch = ?", (token,))
            return [Line(*row) for row in rows]

    def look_up(self, ids: Iterable[str]) -> tuple[list[Line], list[Sent], set[str]]:
        """The good answers, the batches at the provider that hold other requests, and the ids of all these requests."""
        wanted = set(ids)
        with self._opened() as database:
            good = database.execute(
                "SELECT id, status, body FROM requests WHERE status = 200 "
                "AND id IN (SELECT value FROM json_each(?)) GROUP BY id",
                _as_json(wanted),
            )
            lines = [Line(*row) for row in good]
            known = {line.id for line in lines}
            pending = database.execute(
                "SELECT id, batch, remote FROM requests WHERE NOT ended AND remote NOT NULL "
                "AND id IN (SELECT value FROM json_each(?))",
                _as_json(wanted - known),
            ).fetchall()
        return lines, sorted({Sent(*row[1:]) for row in pending}), known.union(row[0] for row in pending)

    def announced(self, ids: Iterable[str]) -> list[Announced]:
        """The batches that may have been sent or not, as far as they have one of these requests."""
        with self._opened() as database:
            found = database.execute(
                "SELECT batch, announced, json_group_array(id) FROM requests WHERE remote IS NULL AND batch IN "
                "(SELECT batch FROM requests WHERE id IN (SELECT value FROM json_each(?))) GROUP BY batch",
                _as_json(ids),
            ).fetchall()
            others = database.execute("SELECT DISTINCT remote FROM requests WHERE remote NOT NULL") if found else ()
            elsewhere = frozenset(remote for (remote,) in others)
        return [Announced(token, at, frozenset(json.loads(members)), elsewhere) for token, at, members in found]

    def count(self, ids: Iterable[str]) -> set[str]:
        """Notes that answers to these requests are handed out; returns those that were not before."""
        with self._opened() as database:
            found = database.execute(
                "SELECT DISTINCT id FROM requests WHERE status = 200 AND NOT counted "
                "AND id IN (SELECT value FROM json_each(?))",
                _as_json(ids),
            ).fetchall()
            database.executemany("UPDATE requests SET counted = 1 WHERE status = 200 AND id = ?", found)
        return {one for (one,) in found}

    def refuse(self, ids: Iterable[str]) -> None:
        """Forgets answers that could not be used: the next one with the same request asks again."""
        with self._opened() as database:
            rows = ((one,) for one in ids)
            database.executemany("UPDATE requests SET status = NULL, body = '' WHERE status = 200 AND id = ?", rows)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are made together, and that reads what is there at one moment."""
        try:
            with legible_errors(), closing(sqlite3.connect(self._path, _BUSY_SECS)) as database, database:
                database.text_factory = lambda data: data.decode(errors="replace")  # damage concerns its request only
                database.execute("BEGIN IMMEDIATE")  # else each query would begin when it runs
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
