"""The messages that most dead letters have, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_DISTINCT = 100
_CHARACTERS = 300


class Messages:
    """How many dead letters have which message, by stage, type of error and message.

    Where there are more different ones than are kept, the rarest go, and come back as new: a count is then a lower
    bound, and those of messages that keep coming hardly suffer.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, message: str) -> None:
        """Counts one, of which the first words are kept; ``what`` is stage and type."""
        words = " ".join(message[: 2 * _CHARACTERS].split())
        short = words if len(words) <= _CHARACTERS else words[: _CHARACTERS - 3] + "..."
        self._counts[f"{what}: {short}" if short else what] += 1
        self._forget_the_rarest()

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Adds those of a part."""
        self._counts.update(counts)
        self._forget_the_rarest()

    def most_frequent(self, number: int = _DISTINCT) -> dict[str, int]:
        """So many, the most frequent first."""
        return dict(self._counts.most_common(number))

    def _forget_the_rarest(self) -> None:
        if len(self._counts) > 2 * _DISTINCT:
            self._counts = Counter(self.most_frequent())
