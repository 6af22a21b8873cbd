"""Collects items until a batch is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Batcher(Generic[ItemT]):
    """Cuts a stream of items into batches, in order.

    A batch never has more than ``max_count`` items nor more than ``max_weight`` in all, except that an item heavier
    than ``max_weight`` forms a batch alone. A batch leaves when its size reaches ``target()``; its size is the number
    of its items, or their weight where ``target_is_weight``.

    Args:
        target: the size at which a batch leaves; asked once for each batch, when it begins.
        max_count: largest number of items.
        max_weight: largest sum of weights; None: no limit.
        target_is_weight: whether ``target`` counts weight rather than items.
    """

    def __init__(
        self,
        target: Callable[[], int],
        max_count: int,
        max_weight: float | None = None,
        *,
        target_is_weight: bool = False,
    ) -> None:
        self._ask_target = target
        self._max_count = max_count
        self._max_weight = max_weight
        self._target_is_weight = target_is_weight
        self._begin()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: ItemT) -> list[ItemT] | None:
        """Takes an item where weights play no part; returns the batch that it completes, if it does."""
        items = self._items
        items.append(item)
        return self.flush() if len(items) >= self._full_count else None

    def add_weighed(self, item: ItemT, weight: float) -> list[list[ItemT]]:
        """Takes an item of a weight; returns the batches that leave: none, one or two."""
        leaving = []
        if self._items and self._max_weight is not None and self._weight + weight > self._max_weight:
            leaving.append(self.flush())
        self._items.append(item)
        self._weight += weight
        if self._is_full():
            leaving.append(self.flush())
        return leaving

    def flush(self) -> list[ItemT]:
        """Whatever has been collected, at once; it may be empty."""
        batch = self._items
        self._begin()
        return batch

    def _is_full(self) -> bool:
        size = self._weight if self._target_is_weight else len(self._items)
        heavy = self._max_weight is not None and self._weight >= self._max_weight
        return heavy or size >= self._target or len(self._items) >= self._max_count

    def _begin(self) -> None:
        self._items: list[ItemT] = []
        self._weight: float = 0
        self._target = self._ask_target()
        self._full_count = min(self._target, self._max_count)
