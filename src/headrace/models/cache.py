"""Models in this process: each loaded once, shared by all threads, within a limit."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import ModelMemoryError
from headrace.models.memory import give_back_memory
from headrace.models.memory_budget import Evict, Go, MemoryBudget, Refuse

_PATIENCE = 64
"""So many may use models that are there while somebody waits for room to load another."""
_LARGE = 1 << 24
"""Bytes of a model that are worth a garbage collection."""


class _Slot:
    """One model's place; ``ready`` once it is loaded, ``users`` while batches run on it."""

    def __init__(self) -> None:
        self.model: Any = None
        self.ready = False
        self.users = 0


class ModelCache:
    """The models that go by one identifier in this process.

    Args:
        limit: how many models may be held at a time; None: no limit. When it is reached, the one that has been idle
            longest makes room; where none is idle, whoever needs another waits.
        room: says whether memory has room for one more; None: nobody asks.
    """

    def __init__(self, limit: int | None = None, room: MemoryBudget | None = None) -> None:
        self._limit = limit
        self._room = room
        self._waiting = 0
        """How many wait for room."""
        self._passed = 0
        """How many have used models meanwhile."""
        self.is_short = False
        """Whether a model had to go, or to wait, for want of memory."""
        self._slots: OrderedDict[Any, _Slot] = OrderedDict()
        self._claims: Counter[Any] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many models are held, those being loaded included."""
        return len(self._slots)

    def get(self, name: Any) -> Any:
        """The model called ``name``, if it is here; None if not."""
        slot = self._slots.get(name)
        return slot.model if slot is not None and slot.ready else None

    def claim(self, names: Iterable[Hashable]) -> None:
        """Says that these models may be asked for."""
        with self._changed:
            self._claims.update(names)

    def disclaim(self, names: Iterable[Hashable]) -> None:
        """Takes back a claim; lets go of models that nobody claims any longer, and which nobody uses."""
        with self._changed:
            for name in names:
                self._claims[name] -= 1
                if self._claims[name] <= 0:
                    del self._claims[name]
                    self._drop([name] if name in self._slots else [])
            self._changed.notify_all()

    def drop_idle(self) -> bool:
        """Lets go of the model that has been idle longest; whether there was one. Its memory is then free."""
        with self._changed:
            idle = self._idle()
            self._drop(idle[:1])
        if idle:
            give_back_memory()  # a model in a cycle of references is gone only with the garbage
        return bool(idle)

    @contextmanager
    def use(
        self, name: Any, load: Callable[[], Any], at_least: Callable[[], int | None] = lambda: None
    ) -> Iterator[Any]:
        """The model called ``name``, loaded with ``load`` if it is not here; it stays while the context is open.

        Different models load side by side; of one model, the first user loads and the others wait. If ``load`` raises,
        the user that called it sees the exception and the next one tries again.

        Args:
            name: of the model.
            load: makes it.
            at_least: how many bytes it takes, as far as is known.

        Raises:
            ModelMemoryError: there is no room for it, though nobody uses any other.
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
        """The loaded slot of a model, or a new one for the caller to load; waits while another thread loads it."""
        needs_room = False
        try:
            while True:
                slot = self._slots.get(name)
                if slot is not None and slot.ready and (needs_room or self._may_pass()):
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

    def _may_pass(self) -> bool:
        """Those who find their model there go before those who must load one, but not for ever.

        Not to be asked for one of the latter, for whom another thread has loaded the model meanwhile.
        """
        if self._waiting and self._passed >= _PATIENCE:
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
            if isinstance(verdict, Go):
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
            self._slots.pop(name).model = None  # whoever used it last may hold the slot a moment longer
            nbytes += self._room.taken(name) if self._room is not None else 0
        if nbytes >= _LARGE:
            give_back_memory()


_lock = threading.Lock()
_open: dict[str, tuple[ModelCache, int]] = {}
"""The process's stores by identifier, each with how often it is open."""


def open_cache(
    identifier: str, limit: int | None = None, names: Iterable[Hashable] = (None,), room: MemoryBudget | None = None
) -> ModelCache:
    """The process's store of that name, made with ``limit`` and ``room`` if it is new; to be closed as often as opened.

    Args:
        identifier: of the store.
        limit: see ``ModelCache``.
        names: of the models that may be asked for.
        room: see ``ModelCache``.
    """
    with _lock:
        store, users = _open.get(identifier) or (ModelCache(limit, room), 0)
        _open[identifier] = (store, users + 1)
        store.claim(names)
        return store


def close_cache(identifier: str, names: Iterable[Hashable] = (None,)) -> None:
    """Ends one use of the store, which forgets models that no other use was opened with."""
    with _lock:
        store, users = _open.pop(identifier)
        if users > 1:
            _open[identifier] = (store, users - 1)
        store.disclaim(names)
