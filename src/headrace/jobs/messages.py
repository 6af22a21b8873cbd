"""Counts the most frequent error messages of dead letters, in bounded memory."""

from __future__ import annotations

from collections import Counter

_DISTINCT = 100
_CHARACTERS = 300


class Messages:
    """Counts of dead letters by stage, error type and message.

    Beyond a limit the rarest messages are dropped, and counted from 0 if they come back. Counts are thus lower bounds;
    those of frequent messages are hardly affected.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, message: str) -> None:
        """Counts a message, cut to 300 characters; ``what`` is the stage and error type."""
        words = " ".join(message[: 2 * _CHARACTERS].split())
        short = words if len(words) <= _CHARACTERS else words[: _CHARACTERS - 3] + "..."
        self._counts[f"{what}: {short}" if short else what] += 1
        if len(self._counts) > 2 * _DISTINCT:
            self._counts = Counter(self.most_frequent())

    def most_frequent(self, number: int = _DISTINCT) -> dict[str, int]:
        """The ``number`` most frequent messages with their counts, most frequent first."""
        return dict(self._counts.most_common(number))
