"""The model cache of a process: each model is loaded once and shared by all threads, within a limit."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import ModelMemoryError
from headrace.models.memory import trim_memory
from headrace.models.memory_budget import Admit, Evict, MemoryBudget, Refuse

_MAX_OVERTAKES = 64
"""How many uses of loaded models may overtake a thread that waits for room to load one."""
_LARGE = 1 << 24
"""Bytes. Dropping this much is worth a garbage collection."""


class _Slot:
    """One model: ``ready`` once it is loaded; ``users`` counts the batches that run on it."""

    def __init__(self) -> None:
        self.model: Any = None
        self.ready = False
        self.users = 0


class ModelCache:
    """This process's models under one identifier. Thread-safe.

    Args:
        limit: how many models may be in memory at a time; None: no limit. At the limit, the model that has been idle
            longest is evicted; if none is idle, ``use`` waits.
        room: decides whether memory has room for one more model; None: memory is not checked.
    """

    def __init__(self, limit: int | None = None, room: MemoryBudget | None = None) -> None:
        self._limit = limit
        self._room = room
        self._waiting = 0
        """How many threads wait for room."""
        self._passed = 0
        """How many uses of loaded models have overtaken them."""
        self.is_short = False
        """Whether lack of memory has ever evicted a model or made a load wait."""
        self._slots: OrderedDict[Any, _Slot] = OrderedDict()
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
        """Drops the model that has been idle longest and frees its memory; returns whether there was one."""
        with self._changed:
            idle = self._idle()
            self._drop(idle[:1])
        if idle:
            trim_memory()  # a model in a reference cycle is freed only by the garbage collector
        return bool(idle)

    @contextmanager
    def use(
        self, name: Any, load: Callable[[], Any], at_least: Callable[[], int | None] = lambda: None
    ) -> Iterator[Any]:
        """Yields the model called ``name``, loaded with ``load`` if necessary; it stays while the context is open.

        Different models load concurrently. For one model, the first thread loads and the others wait. If ``load``
        raises, that thread gets the exception, and the next one tries again.

        Args:
            name: the model's name.
            load: loads the model.
            at_least: a lower bound for its size, in bytes; None: unknown.

        Raises:
            ModelMemoryError: there is no room for it, although no other model is in use.
        """
        slot = self._enter(name, load, at_least)
        try:
            yield slot.model
        finally:
            with self._changed:
                slot.users -= 1
                self._changed.notify_all()

    def _enter(self, name: Any, load: Callable[[], Any], at_least: Callable[[], int | None]) -> _Slot:
        with self._changed:
            slot = self._slot(name, at_least)
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
                self._room.ended(name)
            slot.ready = True
            self._changed.notify_all()
        return slot

    def _slot(self, name: Any, at_least: Callable[[], int | None]) -> _Slot:
        """The slot of a loaded model, or a new one for the caller to load; waits for other threads that load it."""
        needs_room = False
        try:
            # Each change wakes all waiting threads. A thread whose model is loaded takes it at once, except that it
            # stands back when such threads have kept others from room for too long; then models become idle.
            while True:
                slot = self._slots.get(name)
                if slot is not None and slot.ready and (needs_room or self._may_overtake()):
                    self._slots.move_to_end(name)
                    return slot
                if slot is None and self._has_room(name, at_least):
                    slot = self._slots[name] = _Slot()
                    return slot
                if slot is None and not needs_room:
                    needs_room = True
                    self._waiting += 1
                self._changed.wait()
        finally:
            if needs_room:
                self._waiting -= 1
                self._passed = 0
                self._changed.notify_all()

    def _may_overtake(self) -> bool:
        """Whether a thread whose model is loaded may overtake those that wait for room; at most ``_MAX_OVERTAKES`` do.

        Not for a thread that itself waited for room, and whose model another thread has loaded meanwhile.
        """
        if self._waiting and self._passed >= _MAX_OVERTAKES:
            return False
        self._passed += self._waiting > 0
        return True

    def _has_room(self, name: Any, at_least: Callable[[], int | None]) -> bool:
        if self._limit is not None and len(self._slots) >= self._limit:
            idle = self._idle()
            if not idle:
                return False
            self._drop(idle[:1])
        return self._room is None or self._memory_has_room(self._room, name, at_least)

    def _memory_has_room(self, room: MemoryBudget, name: Any, at_least: Callable[[], int | None]) -> bool:
        while True:
            loading = [one for one, slot in self._slots.items() if not slot.ready]
            held = {one: slot.users for one, slot in self._slots.items() if slot.ready}
            verdict = room.verdict(name, at_least(), held, loading)
            if isinstance(verdict, Admit):
                room.begins(loading)
                return True
            self.is_short = self.is_short or not loading
            if isinstance(verdict, Evict):
                self._drop(verdict.keys)
                continue
            if isinstance(verdict, Refuse) and not any(held.values()):
                raise ModelMemoryError(f"the model of {name!r}", verdict.reason)
            return False

    def _idle(self) -> list[Any]:
        return [name for name, slot in self._slots.items() if slot.users == 0]

    def _drop(self, names: Iterable[Any]) -> None:
        nbytes = 0
        for name in names:
            self._slots.pop(name).model = None  # its last user may hold the slot a moment longer
            nbytes += self._room.taken(name) if self._room is not None else 0
        if nbytes >= _LARGE:
            trim_memory()


_lock = threading.Lock()
_open: dict[str, tuple[ModelCache, int]] = {}
"""The process's caches by identifier, each with how often it is open."""


def open_cache(
    identifier: str, limit: int | None = None, names: Iterable[Hashable] = (None,), room: MemoryBudget | None = None
) -> ModelCache:
    """Opens the process's cache with that identifier; call ``close_cache`` once for each call.

    Args:
        identifier: the cache's identifier.
        limit: for a new cache: how many models may be in memory at a time; None: no limit.
        names: the models that the caller may ask for.
        room: for a new cache: decides whether memory has room for one more model; None: memory is not checked.
    """
    with _lock:
        store, users = _open.get(identifier) or (ModelCache(limit, room), 0)
        _open[identifier] = (store, users + 1)
        store.claim(names)
        return store


def close_cache(identifier: str, names: Iterable[Hashable] = (None,)) -> None:
    """Undoes one ``open_cache``; drops models that no other caller has named."""
    with _lock:
        store, users = _open.pop(identifier)
        if users > 1:
            _open[identifier] = (store, users - 1)
        store.disclaim(names)
