"""For how long requests have waited because their endpoint refuses some, or all."""

from __future__ import annotations


class ThrottledTime:
    """Adds up the times in which an endpoint was throttled. One thread notes them; any thread may ask."""

    def __init__(self) -> None:
        self._secs = 0.0
        self._since: float | None = None

    def note(self, now: float, *, is_throttled: bool) -> None:
        """Notes whether it is throttled from now on."""
        if not is_throttled and self._since is not None:
            self._secs += now - self._since
            self._since = None
        elif is_throttled and self._since is None:
            self._since = now

    def secs(self, now: float) -> float:
        """The sum so far, in seconds."""
        since = self._since
        return self._secs + (now - since if since is not None else 0.0)
