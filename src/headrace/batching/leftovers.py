"""Collects what concurrent bundles leave over until it fills a batch. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch
from headrace.batching.lookahead import lookahead_for
from headrace.batching.size import SizeController
from headrace.core.config import BatchingConfig


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
        """Whether a batch should leave: it is full or due, or no other bundle can add to it."""
        # Lingering: as long as another bundle is open it may leave elements that fill this batch, so it waits, but not
        # beyond the time limit of its oldest leftover. With no other bundle open, waiting would gain nothing.
        if not self._waiting:
            return False
        return not others_may_come or self._waiting[0].due <= now or self._size() >= self._limit()

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


class SortedLeftovers:
    """Like ``Leftovers``, but sorts the elements of all bundles together to reduce padding.

    Args:
        config: limits; its elements are sorted.
        sizes: determines batch sizes.
    """

    def __init__(self, config: BatchingConfig, sizes: SizeController) -> None:
        self._config = config
        self._sizes = sizes
        self._waiting = lookahead_for(config, sizes)
        """Each element's tag is a pair: its leftover without the elements, and its own tag."""

    @property
    def due(self) -> int | None:
        """When the next batch leaves at the latest, in nanoseconds; None: nothing waits."""
        return min((one.tag[0].due for one in self._waiting), default=None)

    def add(self, leftover: Leftover) -> None:
        """Adds elements."""
        of = leftover._replace(batch=Batch([], []))
        for one in leftover.batch.measured:
            self._waiting.add(one._replace(tag=(of, one.tag)))

    def forget(self, owner: Any) -> None:
        """Drops an owner's remaining elements."""
        rest = [one for one in self._waiting if one.tag[0].owner is not owner]
        self._waiting = lookahead_for(self._config, self._sizes)
        for one in rest:
            self._waiting.add(one)

    def is_due(self, now: int, *, others_may_come: bool) -> bool:
        """Whether a batch should leave; once an element is due, True until it has left."""
        due = self.due
        if due is None:
            return False
        return not others_may_come or due <= now or self._size() >= self._sizes.target()

    def take(self) -> list[Leftover]:
        """Removes and returns the parts of the next batch, the longest elements first; something must be waiting."""
        batch = self._waiting.take()
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
            return sum(one.size for one in self._waiting)
        return min(len(self._waiting), self._config.max_batch_size)


def leftovers_for(config: BatchingConfig, sizes: SizeController) -> Leftovers | SortedLeftovers:
    """The kind of leftovers that a configuration calls for."""
    return SortedLeftovers(config, sizes) if config.sorts else Leftovers(config, sizes.target)
