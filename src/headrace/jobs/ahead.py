"""Makes the next item while the caller is busy with one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items; a thread makes the next one. Close it, and the thread ends whatever happens.

    Raises:
        Exception: what ``items`` raises, in its turn.
    """
    with ThreadPoolExecutor(1, "headrace-reads-ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
