"""What a provider's Batch API can do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.core.errors import HeadraceError
from headrace.handlers.batch_store import Announced, Line

__all__ = ["BatchApi", "BatchNotMadeError", "BatchRefusedError", "Collected", "Request", "parts_of"]


class BatchRefusedError(HeadraceError, RuntimeError):
    """The provider refuses a whole batch: nothing of it is done.

    Args:
        reason: the provider's.
        is_for_now: whether the batch would be accepted when others have ended.
    """

    def __init__(self, reason: str, *, is_for_now: bool = False) -> None:
        super().__init__(reason)
        self.is_for_now = is_for_now


class BatchNotMadeError(HeadraceError, RuntimeError):
    """A batch could not be sent, and it is certain that the provider has made none.

    Args:
        error: the client's.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


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

    async def send(self, token: str, requests: Sequence[Request]) -> str:
        """Sends a batch; returns its id.

        Raises:
            BatchNotMadeError: it failed before there could be one.
        """

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
