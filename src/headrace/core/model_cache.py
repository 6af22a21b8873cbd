"""A cache of models: each is loaded once and shared by all threads, within a limit."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.core.answer import predictions_for
from headrace.core.handler import ModelHandler

_MAX_OVERTAKES = 64
"""How many uses of loaded models may overtake a thread that waits for room to load one."""

POLL_SECS = 0.05
"""How often a thread that waits looks whether other processes have made room."""


class Room(Protocol):
    """Decides whether memory has room for one more model; the cache calls it under its lock."""

    def make(
        self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]
    ) -> Sequence[Any] | None:
        """The idle models to evict before a load; empty: it may begin; None: something has to change first.

        Args:
            name: the model's name.
            at_least: a lower bound for its size, in bytes; None: unknown.
            held: the number of users of each loaded model by name, least recently used first.
            loading: the names of the models being loaded.

        Raises:
            ModelMemoryError: there is no room, although no other model is in use.
        """
        ...

    def make_way(self, name: Any, idle: Sequence[Any]) -> Sequence[Any]:
        """Which of the idle models to evict for another process, before this one uses the named model."""
        ...

    def loaded(self, name: Any) -> None:
        """Notes that a load has ended."""
        ...

    def dropped(self, names: Sequence[Any]) -> None:
        """Notes that these models are no longer in memory."""
        ...


class Slot:
    """A model's place in the cache; the model is ready once it is loaded, and stays until its users have released it.

    It is a context as well: the model, released at the end.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.model: Any = None
        self.ready = False
        self.users = 0
        """How many batches run on it."""

    def __enter__(self) -> Any:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Ends one use."""
        with self._changed:
            self.users -= 1
            self._changed.notify_all()


class ModelCache:
    """Models by name. Thread-safe.

    Args:
        limit: how many models may be in memory at a time; None: no limit. At the limit, the model that has been idle
            longest is evicted; if none is idle, ``use`` waits.
        room: decides whether memory has room for one more model; None: memory is not checked.
    """

    def __init__(self, limit: int | None = None, room: Room | None = None) -> None:
        self._limit = limit
        self._room = room
        self._waiting = 0
        """How many threads wait for room."""
        self._passed = 0
        """How many uses of loaded models have overtaken them."""
        self.is_short = False
        """Whether lack of memory has ever evicted a model or made a load wait."""
        self._slots: OrderedDict[Any, Slot] = OrderedDict()
        self._claims: Counter[Any] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many models are in memory or being loaded."""
        return len(self._slots)

    def get(self, name: Any) -> Any:
        """The model called ``name``, or None if it is not loaded."""
        slot = self._slots.get(name)
        return slot.model if slot is not None and slot.ready else None

    def claim(self, names: Iterable[Hashable]) -> None:
        """Notes that a user of the cache may ask for these models."""
        with self._changed:
            self._claims.update(names)

    def disclaim(self, names: Iterable[Hashable]) -> None:
        """Takes back a claim; drops models that nobody claims any longer."""
        with self._changed:
            for name in names:
                self._claims[name] -= 1
                if self._claims[name] <= 0:
                    del self._claims[name]
                    self._drop([name] if name in self._slots else [])
            self._changed.notify_all()

    def drop_idle(self) -> bool:
        """Drops the model that has been idle longest; returns whether there was one."""
        with self._changed:
            idle = self._idle()
            self._drop(idle[:1])
        return bool(idle)

    def use(self, name: Any, load: Callable[[], Any], at_least: Callable[[], int | None] = lambda: None) -> Slot:
        """The model called ``name``, loaded with ``load`` if necessary; it stays until the slot is released.

        Different models load concurrently. One model, which needs ``at_least()`` bytes, is loaded by the first thread
        that asks, while the others wait. If ``load`` raises, that thread gets the exception, and the next one tries.

        Raises:
            ModelMemoryError: there is no room for it, although no other model is in use.
        """
        with self._changed:
            if self._room is not None and (evicted := self._room.make_way(name, self._idle())):
                self._drop(evicted)
                self.is_short = True
            slot = self._slots.get(name)
            if slot is None or not slot.ready or self._waiting:  # usually it is there, and nobody waits
                slot = self._slot(name, at_least)
            self._slots.move_to_end(name)
            slot.users += 1
            if slot.ready:
                return slot
        try:
            slot.model = load()
        except BaseException:
            with self._changed:
                del self._slots[name]
                self._changed.notify_all()
            raise
        with self._changed:
            if self._room is not None:
                self._room.loaded(name)
            slot.ready = True
            self._changed.notify_all()
        return slot

    def _slot(self, name: Any, at_least: Callable[[], int | None]) -> Slot:
        """The slot of a loaded model, or a new one for the caller to load; waits for other threads that load it."""
        needs_room = False
        try:
            # Each change wakes all waiting threads. A thread whose model is loaded takes it at once, except that it
            # stands back when such threads have kept others from room for too long; then models become idle.
            while True:
                slot = self._slots.get(name)
                if slot is not None and slot.ready and (needs_room or self._passed < _MAX_OVERTAKES):
                    self._passed += self._waiting > 0
                    return slot
                if slot is None and self._has_room(name, at_least):
                    slot = self._slots[name] = Slot(self._changed)
                    return slot
                if slot is None and not needs_room:
                    needs_room = True
                    self._waiting += 1
                self._changed.wait(None if self._room is None else POLL_SECS)
        finally:
            if needs_room:
                self._waiting -= 1
                self._passed = 0
                self._changed.notify_all()

    def _has_room(self, name: Any, at_least: Callable[[], int | None]) -> bool:
        if self._limit is not None and len(self._slots) >= self._limit:
            idle = self._idle()
            if not idle:
                return False
            self._drop(idle[:1])
        while self._room is not None:
            loading = [one for one, slot in self._slots.items() if not slot.ready]
            held = {one: slot.users for one, slot in self._slots.items() if slot.ready}
            evicted = self._room.make(name, at_least(), held, loading)
            if evicted is not None and not evicted:
                break
            self.is_short = self.is_short or not loading
            if evicted is None:
                return False
            self._drop(evicted)
        return True

    def _idle(self) -> list[Any]:
        return [name for name, slot in self._slots.items() if slot.users == 0]

    def _drop(self, names: Sequence[Any]) -> None:
        for name in names:
            self._slots.pop(name).model = None  # its last user may hold the slot a moment longer
        if names and self._room is not None:
            self._room.dropped(names)


class ResidentModels:
    """Predicts which models a cache, maybe another process's, holds: those for which batches left last. Thread-safe.

    The cache evicts the model that was used least recently, so both agree.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count: float = count or math.inf
        self._lock = threading.Lock()
        self._taken: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, name: Hashable) -> bool:
        """Whether a batch of that model evicts no other."""
        return name in self._taken or len(self._taken) < self._count

    def eviction_candidate(self, name: Hashable) -> Hashable | None:
        """The model that a batch of this one would evict; None: it would evict none."""
        with self._lock:
            return None if name in self else next(iter(self._taken))

    def take(self, name: Hashable) -> None:
        """Notes that a batch of that model leaves."""
        with self._lock:
            self._taken[name] = None
            self._taken.move_to_end(name)
            self._evict()

    def limit_to(self, count: int) -> None:
        """Notes that memory had room for only ``count`` models."""
        with self._lock:
            self._count = min(self._count, max(1, count))
            self._evict()

    def flush_order(self, lengths: Mapping[Any, int]) -> list[Any]:
        """The order in which all queues leave: models in memory first; the longest last, to stay there."""
        if self._count == math.inf:
            return list(lengths)
        return sorted(lengths, key=lambda name: (name not in self._taken, lengths[name]))

    def _evict(self) -> None:
        while len(self._taken) > self._count:
            self._taken.popitem(last=False)


class ModelsOnDemand:
    """The models of a keyed handler that is called directly, by a user or a subclass: each loads on first use.

    ``handlers`` are by the model's name. At most ``limit`` models are in memory at a time (None: all); others wait.
    """

    def __init__(self, handlers: Mapping[Any, ModelHandler[Any, Any, Any]], limit: int | None = None) -> None:
        self._handlers = handlers
        self._cache = ModelCache(limit)

    def use(self, name: Any) -> Slot:
        """A context in which the model is kept."""
        return self._cache.use(name, self._handlers[name].load_model)

    def predict(self, name: Any, examples: Sequence[Any], inference_args: dict[str, Any] | None = None) -> list[Any]:
        """The named model's predictions, made in this process: for callers in another one, who have a proxy of this."""
        with self.use(name) as model:
            return predictions_for(self._handlers[name], examples, model, inference_args)
