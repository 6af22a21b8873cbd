"""What a user says about batches, what a provider's Batch API can do, and how its results are read."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.core.errors import ConfigurationError, HeadraceError, extra_required
from headrace.handlers.batch_store import Announced, Line

__all__ = [
    "MAX_WAIT_SECS",
    "BatchApi",
    "BatchOptions",
    "BatchRefusedError",
    "Collected",
    "Request",
    "parts_of",
    "read_lines",
]

MAX_WAIT_SECS = 90_000.0
"""25 hours: providers give up a batch after 24."""
_OK = 200
_ID = re.compile(rb'"custom_id"\s*:\s*"([^"\\]+)"')
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchOptions:
    """What a user says about batches.

    Args:
        who: the handler's class, for errors.
        directory: in which is kept what was sent.
        max_wait_secs: how long to wait for a batch.

    Raises:
        ConfigurationError: one of them is wrong.
    """

    who: str
    directory: str
    max_wait_secs: float

    def __post_init__(self) -> None:
        given = f"{self.who}: batch_directory={self.directory!r}"
        if not isinstance(self.directory, str) or not self.directory or "://" in self.directory:
            raise ConfigurationError(f"{given} must be the path of a folder on a local disk.")
        if os.path.exists(self.directory) and not os.path.isdir(self.directory):
            raise ConfigurationError(f"{given} is no folder; name one.")
        if not isinstance(self.max_wait_secs, int | float) or not self.max_wait_secs > 0:
            raise ConfigurationError(
                f"{self.who}: max_wait_secs must be a number of more than 0, not {self.max_wait_secs!r}."
            )

    @classmethod
    def of(
        cls, who: str, extra: str, directory: str | os.PathLike[str] | None, max_wait_secs: float
    ) -> BatchOptions | None:
        """The options of a handler; None without a directory.

        Raises:
            ConfigurationError: one of them is wrong.
            MissingExtraError: the package filelock is not installed, which the extra brings.
        """
        if directory is None:
            return None
        with extra_required(extra):
            import filelock  # noqa: F401, PLC0415 - only batches need it

        return cls(who, os.fspath(directory), max_wait_secs)


class BatchRefusedError(HeadraceError, RuntimeError):
    """The provider refuses a whole batch: nothing of it is done.

    Args:
        reason: the provider's.
        is_for_now: whether the batch would be accepted when others have ended.
    """

    def __init__(self, reason: str, *, is_for_now: bool = False) -> None:
        super().__init__(reason)
        self.is_for_now = is_for_now


class Request(NamedTuple):
    """One request of a batch."""

    id: str
    """A digest of its content."""
    body: Mapping[str, Any]


class Collected(NamedTuple):
    """What a batch leaves behind."""

    lines: list[Line]
    """In any order; requests that the batch has not come to may be missing."""
    ended: str
    """How it ended, in the provider's word."""


class BatchApi(Protocol):
    """A provider's Batch API."""

    most_requests: int
    """In a batch."""
    most_bytes: int
    """Of a batch."""
    errors: tuple[type[Exception], ...]
    """What its client raises."""

    async def prepare(self, token: str, requests: Sequence[Request]) -> Any:
        """Does what has to be done before there can be a batch; returns what ``send`` needs."""

    async def send(self, token: str, prepared: Any) -> str:
        """Sends a batch; returns its id."""

    async def find(self, batch: Announced) -> str | None:
        """The id of a batch that may have arrived; "" if it has not; None: that cannot be told yet."""

    async def collect(self, remote: str) -> Collected | None:
        """What a batch leaves behind; None while it runs.

        Raises:
            BatchRefusedError: the whole batch failed.
        """


def parts_of(requests: Iterable[Request], most: int, most_bytes: int) -> Iterator[list[Request]]:
    """Requests that fit into a batch, together."""
    part: list[Request] = []
    size = 0
    for request in requests:
        needed = len(json.dumps(request.body)) + len(request.id) + 200  # what a provider's format has around it
        if part and (len(part) == most or size + needed > most_bytes):
            yield part
            part, size = [], 0
        part.append(request)
        size += needed
    if part:
        yield part


def read_lines(content: bytes, line_of: Callable[[Any], Line]) -> list[Line]:
    """The lines of a file of results, each a JSON object.

    A damaged line was paid for all the same. If its id can be read it is an answer, which its handler cannot use.

    Args:
        content: of the file.
        line_of: reads the value of a line; may raise what comes of values of a wrong type.
    """
    lines = []
    for raw in filter(bytes.strip, content.split(b"\n")):
        try:
            line = line_of(json.loads(raw))
            if not isinstance(line.id, str):
                raise TypeError("the id is no text")
            lines.append(line._replace(body=line.body.encode(errors="replace").decode()))  # SQLite takes no surrogates
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            said = f"the batch's results have a damaged line: {raw[:200].decode(errors='replace')!r}"
            _LOGGER.warning("%s", said)
            lines += [Line(one.decode(errors="replace"), _OK, json.dumps(said)) for one in _ID.findall(raw)]
    return lines
