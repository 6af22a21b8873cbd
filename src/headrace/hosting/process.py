"""Models in this process: each loaded once, shared by all threads, within a limit."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class _Slot:
    """One model's place; ``ready`` once it is loaded, ``users`` while batches run on it."""

    def __init__(self) -> None:
        self.model: Any = None
        self.ready = False
        self.users = 0


class ModelStore:
    """The models that go by one identifier in this process.

    Args:
        limit: how many models may be held at a time; None: no limit. When it is reached, the one that has been idle
            longest makes room; where none is idle, whoever needs another waits.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
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
                    self._slots.pop(name, None)
            self._changed.notify_all()

    @contextmanager
    def use(self, name: Any, load: Callable[[], Any]) -> Iterator[Any]:
        """The model called ``name``, loaded with ``load`` if it is not here; it stays while the context is open.

        Different models load side by side; of one model, the first user loads and the others wait. If ``load`` raises,
        the user that called it sees the exception and the next one tries again.
        """
        slot = self._enter(name, load)
        try:
            yield slot.model
        finally:
            with self._changed:
                slot.users -= 1
                self._changed.notify_all()

    def _enter(self, name: Any, load: Callable[[], Any]) -> _Slot:
        with self._changed:
            slot = self._slot(name)
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
            slot.ready = True
            self._changed.notify_all()
        return slot

    def _slot(self, name: Any) -> _Slot:
        """The loaded slot of a model, or a new one for the caller to load; waits while another thread loads it."""
        while True:
            slot = self._slots.get(name)
            if slot is None and self._has_room():
                slot = self._slots[name] = _Slot()
                return slot
            if slot is not None and slot.ready:
                self._slots.move_to_end(name)
                return slot
            self._changed.wait()

    def _has_room(self) -> bool:
        if self._limit is None or len(self._slots) < self._limit:
            return True
        idle = next((name for name, slot in self._slots.items() if slot.users == 0), None)
        if idle is None:
            return False
        self._slots.pop(idle).model = None  # whoever used it last may hold the slot a moment longer
        return True


_lock = threading.Lock()
_open: dict[str, tuple[ModelStore, int]] = {}
"""The process's stores by identifier, each with how often it is open."""


def open_store(identifier: str, limit: int | None = None, names: Iterable[Hashable] = (None,)) -> ModelStore:
    """The process's store of that name, made with ``limit`` if it is new; to be closed as often as opened.

    Args:
        identifier: of the store.
        limit: see ``ModelStore``.
        names: of the models that may be asked for.
    """
    with _lock:
        store, users = _open.get(identifier) or (ModelStore(limit), 0)
        _open[identifier] = (store, users + 1)
        store.claim(names)
        return store


def close_store(identifier: str, names: Iterable[Hashable] = (None,)) -> None:
    """Ends one use of the store, which forgets models that no other use was opened with."""
    with _lock:
        store, users = _open.pop(identifier)
        if users > 1:
            _open[identifier] = (store, users - 1)
        store.disclaim(names)
