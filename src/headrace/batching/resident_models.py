"""If not all models fit into memory: which ones are there, and whose elements leave next. Pure."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import NamedTuple


class ResidentModels:
    """Predicts which models the model cache holds: those for which batches left last. Thread-safe.

    The cache evicts the model that was used least recently, so both agree.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count: float = count or math.inf
        self._lock = threading.Lock()
        self._taken: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, name: Hashable) -> bool:
        """Whether a batch of that model evicts no other: the model is in memory, or there is room for it."""
        return name in self._taken or len(self._taken) < self._count

    def has(self, name: Hashable) -> bool:
        """Whether that model is in memory."""
        return name in self._taken

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._count < math.inf

    def eviction_candidate(self, name: Hashable) -> Hashable | None:
        """The model that a batch of this one would evict; None: it would evict none."""
        with self._lock:
            return None if name in self else next(iter(self._taken))

    def take(self, name: Hashable) -> None:
        """Notes that a batch of that model leaves."""
        with self._lock:
            self._taken[name] = None
            self._taken.move_to_end(name)
            while len(self._taken) > self._count:
                self._taken.popitem(last=False)

    def limit_to(self, count: int) -> None:
        """Notes that memory had room for only ``count`` models."""
        with self._lock:
            self._count = min(self._count, max(1, count))
            while len(self._taken) > self._count:
                self._taken.popitem(last=False)


class QueueState(NamedTuple):
    """What waits in one model's queue."""

    nbytes: float
    elements: int
    times_skipped: int
    """How often models that were not in memory went first, since this queue's first element arrived."""


_PATIENCE = 2
"""A queue is passed over at most this many times for each queue that there is."""


def queue_to_empty(queues: Mapping[Hashable, QueueState], resident: ResidentModels) -> Hashable:
    """Name of the model whose elements leave when too many wait; a model's load should serve as many as possible.

    The largest queue of a model in memory, if it has at least half of the waiting bytes, since it costs no load.
    Otherwise the largest of the other queues, unless one has been passed over too often: none waits forever.
    """
    absent = [name for name, queue in queues.items() if queue.elements and name not in resident]
    present = [name for name in queues if name in resident]
    if present:
        largest = max(present, key=lambda name: queues[name].nbytes)
        if not absent or queues[largest].nbytes >= sum(queue.nbytes for queue in queues.values()) / 2:
            return largest
    oldest = max(absent, key=lambda name: queues[name].times_skipped)
    if queues[oldest].times_skipped >= _PATIENCE * len(queues):
        return oldest
    return max(absent, key=lambda name: queues[name].nbytes)


def flush_order(queues: Mapping[Hashable, int], resident: ResidentModels) -> list[Hashable]:
    """The order in which all queues leave: those of models in memory first; within both groups the longest last.

    The most frequent models are then in memory when the next bundle begins.
    """
    return sorted(queues, key=lambda name: (not resident.has(name), queues[name]))
