"""Where a bundle's elements wait for their batch: a queue for each model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.batching.batcher import Batch, Batcher
from headrace.batching.size import SizeController
from headrace.runtime.plan import ONLY, Plan


class Queues:
    """Takes preprocessed elements and gives batches, each with the name of its model; used by one thread.

    Args:
        plan: says which model an element goes to, and what limits a batch.
        sizes: says for each model how large its batches should be.
    """

    def __init__(self, plan: Plan, sizes: Mapping[Any, SizeController]) -> None:
        self._plan = plan
        self._sizes = sizes
        self._size_of = plan.batching.element_size_fn
        self._batchers: dict[Any, Batcher] = {}
        needs_a_look = plan.routed or plan.prebatched or self._size_of is not None
        self.direct: Batcher | None = None if needs_a_look else self._batcher(ONLY)
        """The only queue, where nothing is asked of an element: its ``add`` may be called in place of ours."""

    def add(self, element: Any, tag: Any) -> list[tuple[Any, Batch]]:
        """Takes an element; returns the batches that leave, with their models' names: none, one or two.

        Raises:
            Exception: the element has no model or no weight; it is then in no queue.
        """
        if self.direct is not None:
            batch = self.direct.add(element, tag)
            return [(ONLY, batch)] if batch else []
        if self._plan.prebatched:
            return [(ONLY, Batch([element], [tag]))]
        name = self._plan.handler.cohort(element[0]) if self._plan.routed else ONLY
        weight = self._weigh(element)
        return [(name, batch) for batch in self._batcher(name).add_weighed(element, tag, weight)]

    def flush(self) -> Iterator[tuple[Any, Batch]]:
        """What is left in each queue; a queue is emptied when its turn comes."""
        for name, batcher in self._batchers.items():
            if len(batcher):
                yield name, batcher.flush()

    def _weigh(self, element: Any) -> float:
        if self._size_of is None:
            return 1
        weight: float = self._size_of(element)
        if not 0 <= weight < math.inf:  # nor a NaN, which is neither above a limit nor below it
            raise ValueError(f"element_size_fn must return a finite number of at least 0, not {weight!r}.")
        return weight

    def _batcher(self, name: Any) -> Batcher:
        batcher = self._batchers.get(name)
        if batcher is None:
            config = self._plan.batching
            batcher = self._batchers[name] = Batcher(
                self._sizes[name].target,
                config.max_batch_size,
                config.max_batch_size if config.sizes_are_weights else config.max_batch_weight,
                target_is_weight=config.sizes_are_weights,
            )
        return batcher
