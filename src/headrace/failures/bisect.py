"""Finds the elements that make a batch fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def bisect(
    items: Sequence[ItemT], attempt: Callable[[Sequence[ItemT]], ResultT | Exception], error: Exception
) -> Iterator[tuple[Sequence[ItemT], ResultT | Exception]]:
    """Halves a batch that failed until every bad element stands alone.

    Args:
        items: the batch, at least one item.
        attempt: runs some of the items; returns their result, or the exception that they raised.
        error: what the whole batch raised.

    Yields:
        Consecutive parts of ``items``, which together are all of them, each with its result; a part with an exception
        is a single item. One bad item in n costs at most 2 log2 n attempts, b bad ones O(b log n).
    """
    if len(items) == 1:
        yield items, error
        return
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        outcome = attempt(half)
        if isinstance(outcome, Exception):
            yield from bisect(half, attempt, outcome)
        else:
            yield half, outcome
