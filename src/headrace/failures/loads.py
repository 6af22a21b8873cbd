"""Keeps a model that cannot be loaded from being loaded again for every batch."""

from __future__ import annotations

import threading
from collections.abc import Callable

_RARITY = 10
"""How many times as long as the last attempt took nobody tries again: a tenth of the time, at most, goes to waste."""


class LoadRecord:
    """How the loading of one model has gone, where it may hang or kill its host; thread-safe.

    A load that kills its host is repeated once, since an outsider may have killed it; one that overruns is not. After
    that the error stands for a while, and every batch gets it at once.

    Args:
        now_ns: tells the time, in nanoseconds.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._deaths = 0
        self._error: BaseException | None = None
        self._until_ns = 0

    def standing_error(self) -> BaseException | None:
        """With what batches should fail rather than have the model loaded again; None: try."""
        with self._lock:
            return self._error if self._error is not None and self._now_ns() < self._until_ns else None

    def loaded(self) -> None:
        """It went well."""
        with self._lock:
            self._deaths, self._error = 0, None

    def failed(self, error: BaseException, seconds: float, *, timed_out: bool) -> bool:
        """It did not, after so many seconds; returns whether to try again at once."""
        with self._lock:
            self._deaths += not timed_out
            if not timed_out and self._deaths == 1:
                return True
            self._deaths = 0
            self._error = error
            self._until_ns = self._now_ns() + int(seconds * _RARITY * 1e9)
            return False
