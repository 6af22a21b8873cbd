"""Time that passes only when a test says so."""

from __future__ import annotations

import threading

_START_NS = 1_000_000_000_000_000_000
"""Far from zero, so that a duration is not mistaken for a point in time."""


class FakeClock:
    """A clock for ``RunInference(clock=...)``, ``BatchingConfig(clock=clock.seconds)`` and everything that takes one.

    It starts at the same time in every test and moves only by ``advance``; thread-safe. A pickled copy is another
    clock, which starts at the time of its original.
    """

    def __init__(self) -> None:
        self._now_ns = _START_NS
        self._lock = threading.Lock()

    def time_ns(self) -> int:
        """The time in nanoseconds."""
        return self._now_ns

    def seconds(self) -> float:
        """The time in seconds."""
        return self._now_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Lets ``seconds`` pass.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds}).")
        with self._lock:
            self._now_ns += round(seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        """Advances the clock without waiting."""
        self.advance(seconds)

    def __getstate__(self) -> int:
        return self._now_ns

    def __setstate__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
