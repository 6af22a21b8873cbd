"""Collects elements until a batch is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.batching.footprint import WaitingBytes


class Batch(NamedTuple):
    """Elements with their tags, side by side: two lists cost less for each row than a list of pairs."""

    elements: list[Any]
    tags: list[Any]
    weight: float = 0
    """Sum of the elements' weights, or as if each were as heavy as the heaviest; 0 where weights play no part."""
    useful: float = 0
    """Sum of the elements' weights where ``weight`` counts padding; else 0."""
    measured: Sequence[Any] = ()
    """Where elements are sorted: each with its tag, length and size."""

    @property
    def total(self) -> int:
        """How many elements there are."""
        return len(self.elements)

    def size(self, *, as_weight: bool) -> float:
        """The weight, or the number of the elements."""
        return self.weight if as_weight else self.total

    def part(self, start: int, stop: int) -> Batch:
        """The elements from ``start`` up to ``stop``, as a batch of their own; of the weight it has its share."""
        if start == 0 and stop == len(self.elements):
            return self
        elements = self.elements[start:stop]
        share = len(elements) / max(1, len(self.elements))
        return Batch(elements, self.tags[start:stop], self.weight * share, self.useful * share)

    def pick(self, positions: Sequence[int]) -> tuple[Batch, Sequence[int]]:
        """The elements at these positions, in that order, with a share of the weight; and the position of each."""
        share = len(positions) / max(1, len(self.elements))
        elements, tags = ([these[place] for place in positions] for these in (self.elements, self.tags))
        return Batch(elements, tags, self.weight * share, self.useful * share), positions


class Batcher:
    """Cuts a stream of elements into batches, in order.

    A batch never has more than ``max_count`` elements nor more than ``max_weight`` in all, except that an element
    heavier than ``max_weight`` forms a batch alone. A batch leaves when its size reaches ``target()``; its size is the
    number of its elements, or their weight where ``target_is_weight``. It also leaves when its elements take about
    ``max_bytes``, if its size is at least ``min_size``.

    Args:
        target: the size at which a batch leaves; asked once for each batch, at its first element.
        max_count: largest number of elements.
        max_weight: largest sum of weights; None: no limit.
        target_is_weight: whether ``target`` counts weight rather than elements.
        max_bytes: see above.
        min_size: see above.
    """

    def __init__(
        self,
        target: Callable[[], int],
        max_count: float,
        max_weight: float | None = None,
        *,
        target_is_weight: bool = False,
        max_bytes: float = math.inf,
        min_size: float = 1,
    ) -> None:
        self._ask_target = target
        self._max_count = max_count
        self._max_weight = max_weight
        self._target_is_weight = target_is_weight
        self._max_bytes = max_bytes
        self._min_size = min_size
        self._waiting = WaitingBytes(max_bytes)
        self._begin()

    def __len__(self) -> int:
        return len(self._elements)

    @property
    def bytes(self) -> float:
        """How many bytes the elements take, roughly."""
        return self._waiting.bytes

    def add(self, element: Any, tag: Any) -> Batch | None:
        """Takes an element where weights play no part; returns the batch that it completes, if it does."""
        self._tags.append(tag)
        self._elements.append(element)
        if len(self._elements) < self._next_count:
            return None
        return self.flush() if self._is_full() else None

    def add_weighed(self, element: Any, tag: Any, weight: float) -> list[Batch]:
        """Takes an element of a weight; returns the batches that leave: none, one or two."""
        leaving = []
        if self._elements and self._max_weight is not None and self._weight + weight > self._max_weight:
            leaving.append(self.flush())
        self._elements.append(element)
        self._tags.append(tag)
        self._weight += weight
        if self._is_full():
            leaving.append(self.flush())
        return leaving

    def flush(self) -> Batch:
        """Whatever has been collected, at once; it may be empty."""
        batch = Batch(self._elements, self._tags, self._weight)
        self._begin()
        return batch

    def _begin(self) -> None:
        self._elements: list[Any] = []
        self._tags: list[Any] = []
        self._weight: float = 0
        self._waiting.clear()
        self._target: float = 0  # until the first element asks for it, by when the last batch has been timed
        self._next_count: float = 0
        """With fewer elements the batch is not full, where weights play no part."""

    def _is_full(self) -> bool:
        if self._target == 0:
            self._target = self._ask_target()
        count, waiting = len(self._elements), self._waiting
        if count >= waiting.next_look:
            waiting.look(self._elements)
        self._next_count = min(self._target, self._max_count, waiting.next_look)
        size = self._weight if self._target_is_weight else count
        heavy = self._max_weight is not None and self._weight >= self._max_weight
        large = waiting.bytes >= self._max_bytes and size >= self._min_size
        return heavy or large or size >= self._target or count >= self._max_count
