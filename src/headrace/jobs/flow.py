"""How blocks come to the model: read one ahead, cut to what a second takes, and no more once the first rows failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from headrace.rows.blocks import Block

T = TypeVar("T")

FIRST_ROWS = 1000
_PACE_SECONDS = 1.0


def prefetch(items: Iterator[T]) -> Generator[T, None, None]:
    """Yields the same items; a thread computes the next one meanwhile. Closing the generator ends the thread.

    Raises:
        Exception: whatever ``items`` raises, once the items before it were yielded.
    """
    with ThreadPoolExecutor(1, "headrace-reads-ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def cut_by_time(blocks: Iterable[Block], clock: Callable[[], float] = time.monotonic) -> Iterator[Block]:
    """Cuts blocks to what about a second processes, so that killing the run loses few rows of a slow model.

    The first part is one row; each later part is at most twice as long as the one before it.
    """
    begin, size, taken = clock(), 1, 0
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + size]
            yield part
            start += len(part)
            taken += len(part)
            rows_in_a_second = taken / max(clock() - begin, 1e-3)
            size = max(1, min(2 * size, int(rows_in_a_second * _PACE_SECONDS)))


class FirstRows:
    """The first rows of a bundle, until one has succeeded: what fails a thousand times fails the rest, too.

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
