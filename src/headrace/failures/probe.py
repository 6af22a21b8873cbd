"""Tries a few elements of a failed batch while everything has been failing."""

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
    """Tries elements alone until one succeeds, then searches the others; gives them up if none succeeds.

    Args:
        start: index of the first element.
        stop: index after the last element.
        places: the elements to try alone, counted from ``start``.
        attempt: runs the elements from one index up to another; returns their result, or the exception they raised.
        caught: what the whole batch raised.
        search: finds the bad ones among elements whose attempt raised, as ``bisect`` does.

    Yields:
        (start, stop, result) of consecutive parts that make up the batch; parts that were given up get the exception of
        the batch. Costs one attempt for each place, plus those of the search.
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
