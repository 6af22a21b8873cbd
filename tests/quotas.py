"""Quotas of other kinds than a bucket's, and such that change, for simulated endpoints."""

from __future__ import annotations

from collections import deque

from headrace.testing.simulated_endpoint import OverTime


def steps(*changes: tuple[float, float]) -> OverTime:
    """A value that changes: (from when, value), ..."""
    return lambda now: next(value for since, value in reversed(changes) if now >= since)


class Windows:
    """Accepts so many requests in each second of the clock, which begin that much earlier than the simulation's."""

    def __init__(self, quota: OverTime, earlier: float = 0.0) -> None:
        self._quota, self._earlier = quota, earlier
        self._window, self._used = -1, 0

    def accepts(self, now: float) -> bool:
        """Whether the second has one left."""
        if int(now + self._earlier) != self._window:
            self._window, self._used = int(now + self._earlier), 0
        self._used += 1
        return self._used <= self._quota(now)


class SlidingWindow:
    """Accepts a request if fewer have been accepted in the second before it."""

    def __init__(self, quota: OverTime) -> None:
        self._quota = quota
        self._accepted: deque[float] = deque()

    def accepts(self, now: float) -> bool:
        """Whether the second before has one left."""
        while self._accepted and self._accepted[0] <= now - 1:
            self._accepted.popleft()
        if len(self._accepted) >= self._quota(now):
            return False
        self._accepted.append(now)
        return True
