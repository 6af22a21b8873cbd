"""What follows a load that fails: a death is repeated once, after other failures batches fail at once for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.core.clock import backoff
from headrace.core.errors import copy_of

T = TypeVar("T")

_PAUSE_FACTOR = 10
"""The pause is at least this many times the last attempt, so that failing loads take at most a tenth of the time."""
_SHORTEST_SECS = 1.0
"""The pause after the first load that raises; each further one in a row doubles it."""
_LONGEST_SECS = 300.0
"""Where doubling ends; the pause is longer only if loading itself takes long."""


def survive_one_death(attempt: Callable[[], T], is_death: Callable[[T], bool]) -> T:
    """Repeats an attempt once if its process died: something outside may have killed it."""
    result = attempt()
    return attempt() if is_death(result) else result


class LoadPolicy:
    """The history of loading one model. Thread-safe.

    A load whose host dies is repeated once, since the death may have an outside cause; one that overruns is not.
    After that, and after a load that raises, batches get the error at once until a pause has passed. Pauses grow with
    each load that raises.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._deaths = 0
        self._raised_in_a_row = 0
        self._error: BaseException | None = None
        self._until_ns = 0

    def current_error(self) -> BaseException | None:
        """A copy of the error with which batches should fail without a new load; None: load."""
        with self._lock:
            return copy_of(self._error) if self._error is not None and self._now_ns() < self._until_ns else None

    def loaded(self) -> None:
        """Notes a successful load."""
        with self._lock:
            self._deaths, self._raised_in_a_row, self._error = 0, 0, None

    def failed(self, error: BaseException, seconds: float, *, timed_out: bool) -> bool:
        """Notes that the host died or overran after ``seconds``; returns whether to try again at once."""
        with self._lock:
            self._deaths += not timed_out
            if not timed_out and self._deaths == 1:
                return True
            self._deaths = 0
            self._pause(error, seconds * _PAUSE_FACTOR)
            return False

    def raised(self, error: BaseException, seconds: float) -> None:
        """Notes that loading raised an error after ``seconds``."""
        with self._lock:
            self._raised_in_a_row += 1
            pause = backoff(self._raised_in_a_row, _SHORTEST_SECS, _LONGEST_SECS)
            self._pause(error, max(pause, seconds * _PAUSE_FACTOR))

    def _pause(self, error: BaseException, seconds: float) -> None:
        self._error = copy_of(error)
        self._until_ns = self._now_ns() + int(seconds * 1e9)
