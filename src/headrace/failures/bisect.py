"""Finds the elements that make a batch fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.core.result import Caught

ResultT = TypeVar("ResultT")


def bisect(
    start: int,
    stop: int,
    attempt: Callable[[int, int], ResultT | Caught],
    caught: Caught,
    is_collective: Callable[[BaseException], bool] = lambda _: False,
) -> Iterator[tuple[int, int, ResultT | Caught]]:
    """Halves a batch that failed until every bad element stands alone.

    Args:
        start: index of the first element.
        stop: index after the last element; greater than ``start``.
        attempt: runs the elements from one index up to another; returns their result, or the exception they raised.
        caught: what the whole batch raised.
        is_collective: whether an exception is no single element's fault; a part that raised one is not halved further.

    Yields:
        (start, stop, result) of consecutive parts that make up the batch. If the result is an exception, the part is
        a single element, or ``is_collective`` holds. One bad element in n costs at most 2 log2 n attempts, b bad ones
        O(b log n).
    """
    if stop - start == 1 or is_collective(caught.error):
        yield start, stop, caught
        return
    middle = (start + stop) // 2
    for begin, end in ((start, middle), (middle, stop)):
        result = attempt(begin, end)
        if isinstance(result, Caught):
            yield from bisect(begin, end, attempt, result, is_collective)
        else:
            yield begin, end, result
