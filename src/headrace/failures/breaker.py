"""Stops looking for the bad element when everything fails."""

from __future__ import annotations

import threading


class CircuitBreaker:
    """Open after ``limit`` consecutive batches of which no element succeeded; closed again by the first success.

    While it is open a failed batch is given up as a whole: an outage or a broken model should not cost a search
    through every batch. Thread-safe.

    Args:
        limit: how many batches must fail in a row.
    """

    def __init__(self, limit: int = 5) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._failed_in_a_row = 0

    @property
    def is_open(self) -> bool:
        """Whether failed batches should be given up without a search."""
        return self._failed_in_a_row >= self._limit

    def record(self, *, succeeded: bool) -> None:
        """Takes note of a batch: whether any of its elements succeeded."""
        with self._lock:
            self._failed_in_a_row = 0 if succeeded else self._failed_in_a_row + 1
