"""Sorts many elements at once, so that those of a batch are of similar length and need little padding."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, takewhile
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

    def __iter__(self) -> Iterator[Measured]:
        """The waiting elements."""
        return iter(self._elements)

    def add(self, element: Measured) -> None:
        """Adds an element."""
        self._elements.append(element)

    def take(self) -> Batch:
        """Removes and returns the batch with the longest elements; something must be waiting."""
        self._elements.sort(key=attrgetter("length"), reverse=True)
        bucket = self._bucket(self._elements[0])
        stop, padded = self._end(list(takewhile(lambda one: self._bucket(one) == bucket, self._elements)), 0)
        batch, self._elements = _batch(self._elements[:stop], padded), self._elements[stop:]
        return batch

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
    return Batch([one.element for one in elements], [one.tag for one in elements], padded, useful, elements)


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


class Leftover(NamedTuple):
    """Elements of one bundle that wait for those of others."""

    owner: Any
    batch: Batch
    due: int
    """When they leave at the latest, in nanoseconds."""


class Leftovers:
    """Leftovers for one model, in order of arrival.

    Args:
        config: limits; its elements are not sorted (``SortedLeftovers`` is for those that are).
        target: the size at which a batch leaves; called once for each batch.
    """

    def __init__(self, config: BatchingConfig, target: Callable[[], float]) -> None:
        self._config = config
        self._ask_target = target
        self._target: float | None = None
        self._waiting: deque[Leftover] = deque()

    @property
    def due(self) -> int | None:
        """When the next batch leaves at the latest, in nanoseconds; None: nothing waits."""
        return self._waiting[0].due if self._waiting else None

    def add(self, leftover: Leftover) -> None:
        """Adds elements."""
        self._waiting.append(leftover)

    def forget(self, owner: Any) -> None:
        """Drops an owner's remaining elements."""
        self._waiting = deque(one for one in self._waiting if one.owner is not owner)

    def is_due(self, now: int, *, others_may_come: bool) -> bool:
        """Whether a batch should leave: it is full or due, or no other bundle can add to it.

        Once an element is due, this is True until it has left.
        """
        # Lingering: as long as another bundle is open it may leave elements that fill this batch, so it waits, but not
        # beyond the time limit of its oldest leftover. With no other bundle open, waiting would gain nothing.
        due = self.due
        return due is not None and (not others_may_come or due <= now or self._size() >= self._limit())

    def take(self) -> list[Leftover]:
        """Removes and returns the parts of the next batch; something must be waiting.

        If sizes count elements, a leftover may be split to fill the batch exactly; otherwise it stays whole.
        """
        limit, by_weight = self._limit(), self._config.sizes_are_weights
        self._target = None
        taken = [self._waiting.popleft()] if by_weight else []
        size: float = sum(one.batch.weight for one in taken)
        while self._waiting and size < limit:
            first = self._waiting.popleft()
            more = first.batch.weight if by_weight else first.batch.total
            if by_weight and not self._may_join(taken, first):
                self._waiting.appendleft(first)
                break
            if not by_weight and size + more > limit:
                here = int(limit - size)
                self._waiting.appendleft(first._replace(batch=first.batch.part(here, len(first.batch.elements))))
                first = first._replace(batch=first.batch.part(0, here))
            taken.append(first)
            size += more
        return taken

    def _may_join(self, taken: list[Leftover], one: Leftover) -> bool:
        both = [*taken, one]
        most = self._config.max_batch_size
        return sum(each.batch.weight for each in both) <= most >= sum(len(each.batch.elements) for each in both)

    def _size(self) -> float:
        by_weight = self._config.sizes_are_weights
        return sum(one.batch.weight if by_weight else one.batch.total for one in self._waiting)

    def _limit(self) -> float:
        if self._target is None:
            self._target = max(1, min(self._ask_target(), self._config.max_batch_size))
        return self._target


class SortedLeftovers(Leftovers):
    """Sorts the elements of all bundles together to reduce padding."""

    def __init__(self, config: BatchingConfig, sizes: SizeController) -> None:
        super().__init__(config, sizes.target)
        self._sizes = sizes
        self._sorted = lookahead_for(config, sizes)
        """Each element's tag is a pair: its leftover without the elements, and its own tag."""

    @property
    def due(self) -> int | None:
        """As ``Leftovers.due``."""
        return min((one.tag[0].due for one in self._sorted), default=None)

    def add(self, leftover: Leftover) -> None:
        """As ``Leftovers.add``."""
        of = leftover._replace(batch=Batch([], []))
        for one in leftover.batch.measured:
            self._sorted.add(one._replace(tag=(of, one.tag)))

    def forget(self, owner: Any) -> None:
        """As ``Leftovers.forget``."""
        rest = [one for one in self._sorted if one.tag[0].owner is not owner]
        self._sorted = lookahead_for(self._config, self._sizes)
        for one in rest:
            self._sorted.add(one)

    def take(self) -> list[Leftover]:
        """Removes and returns the parts of the next batch, the longest elements first; something must be waiting."""
        batch = self._sorted.take()
        parts: dict[int, Leftover] = {}
        for one, (of, tag) in zip(batch.elements, batch.tags, strict=True):
            part = parts.setdefault(id(of), of._replace(batch=Batch([], [])))
            part.batch.elements.append(one)
            part.batch.tags.append(tag)
        share, useful = batch.weight / batch.total, batch.useful / batch.total
        return [
            part._replace(batch=part.batch._replace(weight=share * part.batch.total, useful=useful * part.batch.total))
            for part in parts.values()
        ]

    def _size(self) -> float:
        if self._config.learns_from_weights:
            return sum(one.size for one in self._sorted)
        return min(len(self._sorted), self._config.max_batch_size)

    def _limit(self) -> float:
        return self._sizes.target()


def leftovers_for(config: BatchingConfig, sizes: SizeController) -> Leftovers:
    """The kind of leftovers that a configuration calls for."""
    return SortedLeftovers(config, sizes) if config.sorts else Leftovers(config, sizes.target)
