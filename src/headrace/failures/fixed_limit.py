"""A limit that is known: how many requests an engine takes at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.failures.endpoint_board import Board
from headrace.failures.rate_headers import Allowance


class FixedLimit:
    """A fixed number of requests in flight, at any rate; has the methods of ``ConcurrencyLimit``. Pure.

    Args:
        limit: how many.
    """

    is_gone = False
    outage_began: float | None = None
    """An engine in this process has no outages."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.board = Board(0.0)
        """Of nobody else."""

    def take(self, now: float, waiting: int) -> tuple[int, float]:
        """How many of those that wait leave now; and infinity: the next one not before another is finished."""
        left = max(0, min(waiting, self.limit - self.in_flight))
        self.in_flight += left
        return left, math.inf

    def is_throttled(self, now: float) -> bool:
        """False: an engine refuses nothing."""
        return False

    def finished(self, *_: object, **__: object) -> None:
        """A request is over, whatever came of it."""
        self.in_flight -= 1

    def told(self, now: float, allowed: Iterable[Allowance]) -> None:
        """An engine has no quota."""
