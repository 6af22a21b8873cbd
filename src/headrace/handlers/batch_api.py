"""What a provider's Batch API can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.core.errors import HeadraceError
from headrace.handlers.batch_store import Announced, Line

__all__ = ["BatchApi", "BatchRefusedError", "Collected", "Request"]


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

    async def send(self, token: str, requests: Sequence[Request]) -> str:
        """Sends a batch; returns its id."""

    async def find(self, batch: Announced) -> str | None:
        """The id of a batch that may have arrived; "" if it has not; None: that cannot be told yet."""

    async def collect(self, remote: str) -> Collected | None:
        """What a batch leaves behind; None while it runs.

        Raises:
            BatchRefusedError: the whole batch failed.
        """
