"""For how long requests have waited because their endpoint refuses some, or all."""

from __future__ import annotations


class ThrottledTime:
    """Adds up the times in which an endpoint was throttled. One thread notes them; any thread may ask."""

    def __init__(self) -> None:
        self._sum: tuple[float, float | None] = 0.0, None
        """Of those that are over, in seconds, and when the current one began: one value, as other threads see it."""

    def note(self, now: float, *, is_throttled: bool) -> None:
        """Notes whether it is throttled from now on."""
        if is_throttled != (self._sum[1] is not None):
            self._sum = self.secs(now), now if is_throttled else None

    def secs(self, now: float) -> float:
        """The sum so far, in seconds."""
        secs, since = self._sum
        return secs + (now - since if since is not None else 0.0)
