"""Sorts many elements at once, so that those of a batch are of similar length and need little padding."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch
from headrace.batching.size import SizeController
from headrace.core.config import BatchingConfig

_LITTLE, _MUCH = 1 / 8, 1 / 4
"""Shares of a padded batch: padding up to the first never ends a batch; above the second it is always too much."""


class Measured(NamedTuple):
    """An element with its tag, length and size."""

    element: Any
    tag: Any
    length: float
    size: float
    """Its size without padding; a batch's padded size is the number of elements times the largest size."""


class Limits(NamedTuple):
    """Limits of a batch; a single element always leaves, however large it is."""

    min_count: int
    """A batch of fewer elements does not end because of its target or its padding."""
    max_count: float
    max_padded: float
    """Largest product of the number of elements and the largest size."""
    boundaries: Sequence[float] = ()
    """Lengths at which a new bucket begins; elements of different buckets never share a batch."""


class Lookahead:
    """Collects elements and cuts them into batches on demand, longest first.

    Elements of equal length stay in order.

    Args:
        target: the size that a batch should have; called for each batch as it is cut.
        target_is_padded: whether ``target`` and ``max_size`` count padded sizes rather than elements.
        max_size: the size that a batch must not exceed, even below its minimum count.
        overhead: the amount of padding that costs as much as one more batch; a batch ends before it has more. None:
            padding does not end a batch.
    """

    def __init__(
        self,
        target: Callable[[], float],
        limits: Limits,
        *,
        target_is_padded: bool,
        max_size: Callable[[], float] = lambda: math.inf,
        overhead: Callable[[], float] | None = None,
    ) -> None:
        self._ask_target = target
        self._ask_max_size = max_size
        self._ask_overhead = overhead
        self._limits = limits
        self._target_is_padded = target_is_padded
        self._elements: list[Measured] = []

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, element: Measured) -> None:
        """Adds an element."""
        self._elements.append(element)

    def cut(self) -> Iterator[Batch]:
        """Removes everything and yields it in batches; each is cut only on demand, after the last has been timed."""
        elements, self._elements = self._elements, []
        elements.sort(key=attrgetter("length"), reverse=True)
        for _, bucket in groupby(elements, self._bucket):
            rest = list(bucket)
            start = 0
            while start < len(rest):
                stop, padded = self._end(rest, start)
                yield _batch(rest[start:stop], padded)
                start = stop

    def _bucket(self, one: Measured) -> int:
        return bisect_right(self._limits.boundaries, one.length)

    def _end(self, elements: Sequence[Measured], start: int) -> tuple[int, float]:
        """Index after the last element of the batch that begins at ``start``, and the batch's padded size."""
        target, max_size = self._ask_target(), self._ask_max_size()
        overhead = None if self._ask_overhead is None else self._ask_overhead()
        largest = useful = elements[start].size
        count = 1
        for element in elements[start + 1 :]:
            larger = max(largest, element.size)
            padded = larger * (count + 1)
            if count >= self._limits.max_count or padded > self._limits.max_padded:
                break
            size = padded if self._target_is_padded else count + 1
            useful += element.size
            is_enough = size > target or (overhead is not None and _is_wasteful(padded, useful, overhead))
            if size > max_size or (is_enough and count >= self._limits.min_count):
                break
            largest, count = larger, count + 1
        return start + count, largest * count


def _is_wasteful(padded: float, useful: float, overhead: float) -> bool:
    return padded - useful > min(max(overhead, padded * _LITTLE), padded * _MUCH)


def _batch(elements: Sequence[Measured], padded: float) -> Batch:
    useful = sum(one.size for one in elements)
    return Batch([one.element for one in elements], [one.tag for one in elements], padded, useful)


def lookahead_for(config: BatchingConfig, sizes: SizeController) -> Lookahead:
    """The Lookahead for a configuration that sorts elements."""
    limits = Limits(config.min_batch_size, config.max_batch_size, config.max_batch_weight or math.inf)
    if config.sizes_are_weights:
        limits = Limits(1, math.inf, config.max_batch_size)
    minds_padding = config.learns_from_weights and not config.sizes_are_weights
    return Lookahead(
        sizes.target,
        limits._replace(boundaries=config.bucket_boundaries or ()),
        target_is_padded=config.learns_from_weights,
        max_size=sizes.max_size,
        overhead=sizes.overhead if minds_padding else None,
    )
