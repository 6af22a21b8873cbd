"""Time as a parameter, so that no test sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Anything with ``time_ns()``; as in Beam, the module ``time`` qualifies."""

    def time_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; only differences are meaningful."""
        ...


class SystemClock:
    """The machine's monotonic clock: never set back, unlike the wall clock."""

    time_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds since an arbitrary moment."""

    sleep = staticmethod(time.sleep)
    """Sleeps for a number of seconds; only the wait before a retry does."""


def sleep_of(clock: Clock) -> Callable[[float], None]:
    """The clock's own ``sleep``, or else ``time.sleep``."""
    own: Callable[[float], None] = getattr(clock, "sleep", time.sleep)
    return own


def backoff(failed: int, first: float = 1.0, longest: float = 20.0) -> float:
    """Seconds to wait after the ``failed``-th failure in a row: ``first``, then twice as long each, up to ``longest``.

    Many clients of one server multiply it by a random number, so as not to return all at once.
    """
    return float(min(first * 2.0 ** min(failed - 1, 1000), longest))
