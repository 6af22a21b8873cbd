"""Which models are in memory, where not all of them can be, and whose elements go next. Pure."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import NamedTuple


class ResidentModels:
    """What bundles know of the models in memory: those for which batches left last. Thread-safe.

    That is what a store of models keeps from which the one goes that was used least recently.

    Args:
        count: how many models there may be in memory at a time; None: all.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count: float = count or math.inf
        self._lock = threading.Lock()
        self._taken: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, name: Hashable) -> bool:
        """Whether a batch of that model needs nobody to make room: it has a seat, or one is free."""
        return name in self._taken or len(self._taken) < self._count

    def has(self, name: Hashable) -> bool:
        """Whether that model has a seat already."""
        return name in self._taken

    @property
    def are_few(self) -> bool:
        """Whether there is any limit."""
        return self._count < math.inf

    def next_to_go(self, name: Hashable) -> Hashable | None:
        """The model that would make room for that one; None: nobody would."""
        with self._lock:
            return None if name in self else next(iter(self._taken))

    def take(self, name: Hashable) -> None:
        """A batch of that model leaves."""
        with self._lock:
            self._taken[name] = None
            self._taken.move_to_end(name)
            while len(self._taken) > self._count:
                self._taken.popitem(last=False)

    def limit_to(self, count: int) -> None:
        """Memory has had room for so many models only."""
        with self._lock:
            self._count = min(self._count, max(1, count))
            while len(self._taken) > self._count:
                self._taken.popitem(last=False)


class Waiting(NamedTuple):
    """What one model's queue has."""

    nbytes: float
    elements: int
    passed_over: int
    """How often others have gone that had no seat, since its first element came."""


_PATIENCE = 2
"""A queue is passed over so many times as often as there are queues, at most."""


def next_to_leave(queues: Mapping[Hashable, Waiting], resident: ResidentModels) -> Hashable:
    """Whose elements leave, where too many wait: one model's, whose loading should serve as many as possible.

    Of models that are in memory the largest queue, if it has half of the bytes that wait or more: it costs nothing.
    Else of the others the largest, unless one has been passed over too often: nobody waits for ever.
    """
    standing = [name for name, queue in queues.items() if queue.elements and name not in resident]
    seated = [name for name in queues if name in resident]
    if seated:
        largest = max(seated, key=lambda name: queues[name].nbytes)
        if not standing or queues[largest].nbytes >= sum(queue.nbytes for queue in queues.values()) / 2:
            return largest
    oldest = max(standing, key=lambda name: queues[name].passed_over)
    if queues[oldest].passed_over >= _PATIENCE * len(queues):
        return oldest
    return max(standing, key=lambda name: queues[name].nbytes)


def order_of_flush(queues: Mapping[Hashable, int], resident: ResidentModels) -> list[Hashable]:
    """In which order everything leaves: first what is in memory, last those of which most elements have come.

    They are then in memory when the next bundle's come.
    """
    return sorted(queues, key=lambda name: (not resident.has(name), queues[name]))
