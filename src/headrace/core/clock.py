"""Time as a parameter, so that no test sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Anything with ``time_ns()``; the standard module ``time`` is one, as in Beam."""

    def time_ns(self) -> int:
        """Nanoseconds since some fixed moment; only differences mean anything."""
        ...


class SystemClock:
    """The machine's monotonic clock: never set back, unlike the wall clock."""

    def time_ns(self) -> int:
        """Nanoseconds since an arbitrary start."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)


def sleep_of(clock: Clock) -> Callable[[float], None]:
    """How to wait by a clock: in its own way, if it has one."""
    own: Callable[[float], None] = getattr(clock, "sleep", time.sleep)
    return own
