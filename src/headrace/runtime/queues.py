"""Queues a bundle's elements until their batch is complete: one queue for each model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, TypeAlias

from headrace.batching.batcher import Batch, Batcher, footprint, measured
from headrace.batching.columnar import ColumnarBatch, RowBatcher, rows_in
from headrace.batching.lookahead import Lookahead
from headrace.batching.size import SizeController
from headrace.core.config import BatchingConfig
from headrace.core.keyed import NO_PAIRS, not_pairs
from headrace.core.model_cache import ResidentModels
from headrace.runtime.plan import ONLY, Plan

AnyBatch: TypeAlias = Batch | ColumnarBatch


class _InOrder:
    """Preprocessed elements that wait for one model, in order of arrival."""

    def __init__(self, config: BatchingConfig, target: Callable[[], int], *, among_others: bool) -> None:
        self._size_fn = config.element_size_fn
        self._batcher = Batcher(
            target,
            math.inf if config.sizes_are_weights else config.max_batch_size,
            config.max_batch_size if config.sizes_are_weights else None,
            target_is_weight=config.sizes_are_weights,
            max_bytes=config.lookahead_bytes,
            min_size=math.inf if among_others else config.min_batch_size,
        )
        self._held: list[tuple[Any, Any, float]] = []
        """Elements with their tags and sizes that the batcher does not have yet."""
        self._held_bytes = 0.0

    @property
    def bytes(self) -> float:
        """Roughly how many bytes the waiting elements take; a single unsorted queue limits them itself."""
        return self._batcher.bytes + self._held_bytes

    def __len__(self) -> int:
        return len(self._batcher) + len(self._held)

    def hold(self, element: Any, tag: Any) -> None:
        """Queues an element whose model is not in memory; raises if its weight cannot be determined."""
        self._held.append((element, tag, self._size(element)))
        self._held_bytes += footprint(element)

    def add(self, element: Any, tag: Any) -> Iterable[Batch]:
        """Queues an element like ``hold``; returns the batches that are complete."""
        if self._held:
            self.hold(element, tag)
            return self._release_held()
        if self._size_fn:
            return self._batcher.add_weighed(element, tag, self._size(element))
        batch = self._batcher.add(element, tag)
        return [batch] if batch else ()

    def all(self) -> Iterator[Batch]:
        """Empties the queue into batches."""
        yield from self._release_held()
        if len(self._batcher):
            yield self._batcher.flush()

    def _release_held(self) -> Iterator[Batch]:
        """The batches that held elements complete; lazy, so that each size follows from the last batch's timing."""
        held, self._held, self._held_bytes = self._held, [], 0.0
        return (batch for one in held for batch in self._batcher.add_weighed(*one))

    def _size(self, element: Any) -> float:
        return measured("element_size_fn", self._size_fn, element) if self._size_fn else 1


class OneQueue:
    """The usual case: one model, and batches that need only count their elements, or the rows of columnar ones.

    ``direct`` is the queue itself, if elements need no inspection: callers may use its ``add``.
    """

    def __init__(self, batcher: Batcher | RowBatcher) -> None:
        self._batcher = batcher
        self.direct = batcher if isinstance(batcher, Batcher) else None

    def add(self, element: Any, tag: Any) -> Iterable[tuple[Any, AnyBatch]]:
        """As ``ModelQueues.add``."""
        if isinstance(self._batcher, RowBatcher):
            return zip(repeat(ONLY), self._batcher.add(element, tag, rows_in(element)))
        batch = self._batcher.add(element, tag)
        return [(ONLY, batch)] if batch else ()

    def flush(self) -> Iterable[tuple[Any, AnyBatch]]:
        """As ``ModelQueues.flush``."""
        return [(ONLY, self._batcher.flush())] if len(self._batcher) else ()


class ModelQueues:
    """One queue for each model, where the element decides which batch it joins: by its key, length or weight.

    Used by one thread.

    Waiting bytes are limited to about ``lookahead_bytes``. A single queue then gives a batch that has reached its
    minimum size; of several queues that are too large together, one is emptied. If not all models fit into memory, the
    elements of an absent model wait until then, so that its load serves many.
    """

    direct: Batcher | None = None

    def __init__(self, plan: Plan, sizes: Mapping[Any, SizeController], resident: ResidentModels) -> None:
        self._plan = plan
        self._sizes = sizes
        self._resident = resident
        self._queues: dict[Any, _InOrder | Lookahead] = {}
        self._bytes: dict[Any, float] = {}
        self._total_bytes = 0.0
        self._most_bytes = plan.batching.lookahead_bytes

    def add(self, element: Any, tag: Any) -> Iterable[tuple[Any, AnyBatch]]:
        """Accepts an element; returns complete batches with their models' names. Run each batch before taking the next.

        Raises:
            Exception: the element has no model or no weight; it is not queued.
        """
        name = self._name(element) if self._plan.routed else ONLY
        queue = self._queues[name] if name in self._queues else self._queue(name)
        full: Iterable[Batch] = ()
        if name in self._resident:
            full = queue.add(element, tag)
        else:
            queue.hold(element, tag)
        if not full and self._total_bytes < self._most_bytes and queue.bytes == self._bytes[name]:
            return ()  # the usual case
        return self._leaving(name, queue, full)

    def flush(self) -> Iterator[tuple[Any, AnyBatch]]:
        """Empties all queues; lazy, so each is emptied only when the batches before it have run."""
        lengths = {name: len(queue) for name, queue in self._queues.items()}
        for name in self._resident.flush_order(lengths):
            yield from self._flush_queue(name)

    def _name(self, pair: Any) -> Any:
        if type(pair) in NO_PAIRS:
            raise not_pairs([pair])
        try:
            key = pair[0]
        except (TypeError, LookupError):
            raise not_pairs([pair]) from None
        return self._plan.handler.cohort(key)

    def _leaving(self, name: Any, queue: _InOrder | Lookahead, full: Iterable[Batch]) -> Iterator[tuple[Any, AnyBatch]]:
        for batch in full:
            yield self._leave(name, batch)
        if self._plan.routed or self._plan.batching.sorts:
            self._set_bytes(name, queue.bytes)
            if self._total_bytes >= self._most_bytes:
                yield from self._empty_one()

    def _empty_one(self) -> Iterator[tuple[Any, AnyBatch]]:
        """Empties one queue, since too many bytes wait."""
        name = self._largest()
        if name not in self._resident:
            makes_room = self._resident.eviction_candidate(name)
            if makes_room in self._queues:  # still in memory: serve what waits for it first
                yield from self._flush_queue(makes_room)
        yield from self._flush_queue(name)

    def _largest(self) -> Any:
        """The largest queue of a model in memory, if it has half of the waiting bytes, since it costs no load.

        Otherwise the largest of the others, so that the load serves many.
        """
        present = [name for name in self._queues if name in self._resident]
        absent = [name for name in self._queues if name not in self._resident and self._bytes[name]]
        if present:
            largest = max(present, key=self._bytes.__getitem__)
            if not absent or self._bytes[largest] >= self._total_bytes / 2:
                return largest
        return max(absent, key=self._bytes.__getitem__)

    def _flush_queue(self, name: Any) -> Iterator[tuple[Any, AnyBatch]]:
        self._set_bytes(name, 0)
        for batch in self._queues[name].all():
            yield self._leave(name, batch)

    def _leave(self, name: Any, batch: Batch) -> tuple[Any, AnyBatch]:
        self._resident.take(name)
        return name, batch

    def _set_bytes(self, name: Any, nbytes: float) -> None:
        self._total_bytes += nbytes - self._bytes[name]
        self._bytes[name] = nbytes

    def _queue(self, name: Any) -> _InOrder | Lookahead:
        config, sizes = self._plan.batching_of(name), self._sizes[name]
        queue: _InOrder | Lookahead
        if config.sorts:
            queue = Lookahead(config, sizes)
        else:
            queue = _InOrder(config, sizes.target, among_others=self._plan.routed)
        self._queues[name] = queue
        self._bytes[name] = 0.0
        return queue


def queues_for(
    plan: Plan, sizes: Mapping[Any, SizeController], resident: ResidentModels | None = None
) -> OneQueue | ModelQueues:
    """The queues that a plan needs."""
    config = plan.batching
    if plan.prebatched:
        return OneQueue(Batcher(lambda: 1, 1))
    if config.columnar:
        return OneQueue(RowBatcher(config, sizes[ONLY]))
    if plan.looks_at_elements:
        return ModelQueues(plan, sizes, ResidentModels(plan.model_limit) if resident is None else resident)
    batcher = Batcher(
        sizes[ONLY].target, config.max_batch_size, max_bytes=config.lookahead_bytes, min_size=config.min_batch_size
    )
    return OneQueue(batcher)
