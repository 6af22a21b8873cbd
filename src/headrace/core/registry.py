"""Objects that the users of a process share: each is made for its first user, and given up by its last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Registry(Generic[KeyT, ValueT]):
    """Shared objects by key, each with its number of users. Thread-safe.

    Attributes:
        lock: held while objects are made and given up; reentrant, so that callers may do more under it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._open: dict[KeyT, tuple[ValueT, int]] = {}

    def __contains__(self, key: KeyT) -> bool:
        """Whether an object has users."""
        return key in self._open

    def values(self) -> list[ValueT]:
        """The objects that have users."""
        with self.lock:
            return [value for value, _ in self._open.values()]

    def open(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """The object, from ``make`` for its first user; call ``close`` once for each call."""
        with self.lock:
            value, users = self._open[key] if key in self._open else (make(), 0)
            self._open[key] = value, users + 1
            return value

    def close(self, key: KeyT) -> ValueT | None:
        """Ends one use; returns the object if that was the last one, so that the caller can release it."""
        with self.lock:
            value, users = self._open.pop(key)
            if users == 1:
                return value
            self._open[key] = value, users - 1
            return None
