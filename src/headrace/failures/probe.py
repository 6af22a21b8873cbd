"""Tries some elements of a batch that has failed, while everything has been failing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from headrace.core.result import Caught

ResultT = TypeVar("ResultT")


def probe(
    start: int,
    stop: int,
    places: Iterable[int],
    attempt: Callable[[int, int], ResultT | Caught],
    caught: Caught,
    *,
    search: Callable[[int, int, Caught], Iterator[tuple[int, int, ResultT | Caught]]],
) -> Iterator[tuple[int, int, ResultT | Caught]]:
    """Tries elements alone until one succeeds; then searches what has not been tried, else gives it up.

    Args:
        start: where the batch begins.
        stop: where it ends.
        places: of the elements to be tried, counted from the start of the batch.
        attempt: runs the elements from one place up to another; returns their result, or the exception they raised.
        caught: what the whole batch raised.
        search: finds what is bad among elements whose attempt raised something, as ``bisect`` does.

    Yields:
        (start, stop, result) of consecutive parts, which together are the batch; of one that has been given up the
        exception is that of the batch. It costs an attempt for each place, and no more than those of a search.
    """
    tried: dict[int, ResultT | Caught] = {}
    is_hopeless = True
    for place in places:
        tried[start + place] = answer = attempt(start + place, start + place + 1)
        if not isinstance(answer, Caught):
            is_hopeless = False
            break
    begin = start
    for end in sorted([*tried, stop]):
        if begin < end and is_hopeless:
            yield begin, end, caught
        elif begin < end:
            answer = attempt(begin, end)
            if isinstance(answer, Caught):
                yield from search(begin, end, answer)
            else:
                yield begin, end, answer
        if end < stop:
            yield end, end + 1, tried[end]
        begin = end + 1
