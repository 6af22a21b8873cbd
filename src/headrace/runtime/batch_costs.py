"""Times a model's batches of growing sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_STEP = 8
_LONG_SECS = 1.0
"""Seconds; the first batch that takes this long is the last."""
_ENOUGH_SECS = 0.3
"""Seconds to spend on each size, unless that leaves too few calls."""
_FEWEST_CALLS = 3


class Cost(NamedTuple):
    """The cost of batches of one size."""

    size: int
    seconds: float
    """Median seconds of a batch; the very first call is not counted."""
    calls: int


def measure(
    run: Callable[[list[Any]], None],
    give: Callable[[int], list[Any]],
    largest: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Cost]:
    """Times batches of 1, 8, 64, ... elements, up to the largest or to one that takes a second.

    Args:
        run: the model's call; the first one is not counted.
        give: returns the requested number of elements, or none.
        largest: the largest batch size, in elements.
        clock: a clock in seconds.

    Raises:
        Exception: whatever ``run`` raises.
    """
    size = 1
    if batch := give(size):
        run(batch)
    while batch:
        seconds: list[float] = []
        while not _suffice(seconds):
            started = clock()
            run(batch)
            seconds.append(clock() - started)
        cost = Cost(size, statistics.median(seconds), len(seconds))
        yield cost
        if size == largest or cost.seconds >= _LONG_SECS:
            return
        size = min(size * _STEP, largest)
        batch = give(size)


def _suffice(seconds: list[float]) -> bool:
    """Whether a size has been timed often enough."""
    total = sum(seconds)
    return total >= _LONG_SECS or (total >= _ENOUGH_SECS and len(seconds) >= _FEWEST_CALLS)
