"""Prefetches items on another thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
