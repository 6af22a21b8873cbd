"""Where a bundle's elements wait for their batch: a queue for each model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, TypeAlias

from headrace.batching.batcher import Batch, Batcher
from headrace.batching.columnar import ColumnarBatch, RowBatcher, rows_in
from headrace.batching.footprint import footprint
from headrace.batching.lookahead import Lookahead, Measured, lookahead_for
from headrace.batching.size import SizeController
from headrace.runtime.plan import ONLY, Plan

AnyBatch: TypeAlias = Batch | ColumnarBatch


class _Holdings:
    """How many bytes wait, by queue and in all."""

    def __init__(self) -> None:
        self._bytes: dict[Any, float] = {}
        self.total = 0.0

    def set(self, name: Any, nbytes: float) -> None:
        """A queue has so many."""
        self.total += nbytes - self._bytes.get(name, 0)
        self._bytes[name] = nbytes

    def add(self, name: Any, nbytes: float) -> None:
        """A queue has so many more."""
        self.set(name, self._bytes.get(name, 0) + nbytes)

    def largest(self) -> Any:
        """The name of the queue with the most."""
        return max(self._bytes, key=self._bytes.__getitem__)


class Queues:
    """Takes preprocessed elements and gives batches, each with the name of its model; used by one thread.

    Bytes that wait are bounded by ``lookahead_bytes``, roughly. One queue gives a batch that has reached its minimum;
    of several queues, where together they have too much, the one that has most gives what it has.

    Args:
        plan: says which model an element goes to, and what limits a batch.
        sizes: says for each model how large its batches should be.
    """

    def __init__(self, plan: Plan, sizes: Mapping[Any, SizeController]) -> None:
        self._plan = plan
        self._sizes = sizes
        config = plan.batching
        self._batchers: dict[Any, Batcher] = {}
        self._lookaheads: dict[Any, Lookahead] = {}
        self._holdings = _Holdings()
        """Of look-aheads, and of queues of which there are several."""
        self._rows = self._row_batcher() if config.columnar else None
        needs_a_look = plan.routed or plan.prebatched or config.sorts or config.sizes_are_weights or config.columnar
        self.direct: Batcher | None = None if needs_a_look else self._batcher(ONLY)
        """The only queue, where nothing is asked of an element: its ``add`` may be called in place of ours."""

    def add(self, element: Any, tag: Any) -> Iterable[tuple[Any, AnyBatch]]:
        """Takes an element; returns the batches that leave, with their models' names, each to be run before the next.

        Raises:
            Exception: the element has no model or no weight; it is then in no queue.
        """
        if self.direct is not None:
            batch = self.direct.add(element, tag)
            return [(ONLY, batch)] if batch else ()
        if self._plan.prebatched:
            return [(ONLY, Batch([element], [tag]))]
        if self._rows is not None:
            return zip(repeat(ONLY), self._rows.add(element, tag, rows_in(element)))
        name = self._plan.handler.cohort(element[0]) if self._plan.routed else ONLY
        size_fn, length_fn = self._plan.batching.element_size_fn, self._plan.batching.length_fn
        size = _measure("element_size_fn", size_fn, element) if size_fn else 1
        if not self._plan.batching.sorts:
            return self._enqueue(name, element, tag, size)
        length = _measure("length_fn", length_fn, element) if length_fn else size
        return self._wait(name, Measured(element, tag, length, size if size_fn else length))

    def flush(self) -> Iterator[tuple[Any, AnyBatch]]:
        """What is left in each queue; a queue is emptied when its turn comes."""
        for name, batcher in self._batchers.items():
            if len(batcher):
                self._holdings.set(name, 0)
                yield name, batcher.flush()
        for name in self._lookaheads:
            yield from self._cut(name)
        if self._rows:
            yield ONLY, self._rows.flush()

    def _enqueue(self, name: Any, element: Any, tag: Any, size: float) -> Iterable[tuple[Any, AnyBatch]]:
        batcher = self._batcher(name)
        leaving = [(name, batch) for batch in batcher.add_weighed(element, tag, size)]
        if self._plan.routed:
            self._holdings.set(name, batcher.bytes)
            if self._holdings.total >= self._plan.batching.lookahead_bytes:
                largest = self._holdings.largest()
                leaving.append((largest, self._batchers[largest].flush()))
                self._holdings.set(largest, 0)
        return leaving

    def _wait(self, name: Any, element: Measured) -> Iterable[tuple[Any, AnyBatch]]:
        lookahead = self._lookaheads[name] if name in self._lookaheads else self._lookahead(name)
        lookahead.add(element)
        self._holdings.add(name, footprint(element.element))
        if len(lookahead) >= self._plan.batching.lookahead:
            return self._cut(name)
        if self._holdings.total >= self._plan.batching.lookahead_bytes:
            return self._cut(self._holdings.largest())
        return ()

    def _cut(self, name: Any) -> Iterator[tuple[Any, AnyBatch]]:
        self._holdings.set(name, 0)
        return ((name, batch) for batch in self._lookaheads[name].cut())

    def _batcher(self, name: Any) -> Batcher:
        batcher = self._batchers.get(name)
        if batcher is None:
            config = self._plan.batching
            batcher = self._batchers[name] = Batcher(
                self._sizes[name].target,
                math.inf if config.sizes_are_weights else config.max_batch_size,
                config.max_batch_size if config.sizes_are_weights else None,
                target_is_weight=config.sizes_are_weights,
                max_bytes=config.lookahead_bytes,
                min_size=math.inf if self._plan.routed else config.min_batch_size,
            )
        return batcher

    def _row_batcher(self) -> RowBatcher:
        config = self._plan.batching
        return RowBatcher(
            self._sizes[ONLY].target,
            config.max_batch_size,
            max_bytes=config.lookahead_bytes,
            min_rows=config.min_batch_size,
        )

    def _lookahead(self, name: Any) -> Lookahead:
        lookahead = self._lookaheads[name] = lookahead_for(self._plan.batching, self._sizes[name])
        return lookahead


def _measure(name: str, function: Callable[[Any], float], element: Any) -> float:
    size = function(element)
    if not 0 <= size < math.inf:  # nor a NaN, which is neither above a limit nor below it
        raise ValueError(f"{name} must return a finite number of at least 0, not {size!r}.")
    return size
