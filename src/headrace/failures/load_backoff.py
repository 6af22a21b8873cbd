"""Keeps a model that cannot be loaded from being loaded again for every batch."""

from __future__ import annotations

import threading
from collections.abc import Callable

_RARITY = 10
"""How many times as long as the last attempt took nobody tries again: a tenth of the time, at most, goes to waste."""
_SHORTEST_SECS = 1.0
"""The pause after the first load that raises; each further one in a row doubles it."""
_LONGEST_SECS = 300.0
"""The longest pause, unless loading itself takes long."""


class LoadBackoff:
    """How the loading of one model has gone; thread-safe.

    A load that kills its host is repeated once, since an outsider may have killed it; one that overruns is not. After
    that, and after one that raises, the error stands for a while, and every batch gets it at once. What raises again
    and again is tried ever more rarely.

    Args:
        now_ns: tells the time, in nanoseconds.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._deaths = 0
        self._raised_in_a_row = 0
        self._error: BaseException | None = None
        self._until_ns = 0
        self._pause_secs = 0.0

    def standing_error(self) -> BaseException | None:
        """With what batches should fail rather than have the model loaded again; None: try."""
        with self._lock:
            return self._error if self._error is not None and self._now_ns() < self._until_ns else None

    @property
    def fresh_secs(self) -> float:
        """A failure that another process has just had, this long ago at most, is as good as one's own."""
        return max(_SHORTEST_SECS, self._pause_secs)

    def loaded(self) -> None:
        """It went well."""
        with self._lock:
            self._deaths, self._raised_in_a_row, self._error, self._pause_secs = 0, 0, None, 0.0

    def failed(self, error: BaseException, seconds: float, *, timed_out: bool) -> bool:
        """It did not, after so many seconds; returns whether to try again at once."""
        with self._lock:
            self._deaths += not timed_out
            if not timed_out and self._deaths == 1:
                return True
            self._deaths = 0
            self._stand(error, seconds * _RARITY)
            return False

    def raised(self, error: BaseException, seconds: float) -> None:
        """It raised an error, after so many seconds."""
        with self._lock:
            pause = min(_SHORTEST_SECS * 2**self._raised_in_a_row, _LONGEST_SECS)
            self._raised_in_a_row += 1
            self._stand(error, max(pause, seconds * _RARITY))

    def _stand(self, error: BaseException, seconds: float) -> None:
        self._error = error
        self._pause_secs = seconds
        self._until_ns = self._now_ns() + int(seconds * 1e9)
