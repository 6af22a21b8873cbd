"""Time as a parameter, so that no test sleeps."""

from __future__ import annotations

import time
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
