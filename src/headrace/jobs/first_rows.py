"""Ends a run whose first rows all fail: what fails a thousand times fails the rest, too, and may cost as much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.rows.blocks import Block

FIRST_ROWS = 1000


class FirstRows:
    """The first rows of a bundle, until one of them has succeeded.

    Args:
        may_fail: whether all of them may.
    """

    def __init__(self, *, may_fail: bool) -> None:
        self._unread = 0 if may_fail else FIRST_ROWS
        self._waiting: set[int] = set()
        """Places of those that have not failed."""
        self._may_fail = may_fail
        self.were_last = False
        """Whether the bundle read no further."""

    def noted(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Hands on the blocks that the bundle reads."""
        for block in blocks:
            if self._unread:
                places = [row.place for row in islice(block.places(), self._unread)]
                self._unread -= len(places)
                self._waiting.update(places)
            yield block

    def failed(self, place: int) -> None:
        """Notes that the row at a place has failed."""
        self._waiting.discard(place)

    def end(self) -> bool:
        """Whether the bundle is to read no further: all of them have failed."""
        self.were_last = self.were_last or not (self._may_fail or self._unread or self._waiting)
        return self.were_last
