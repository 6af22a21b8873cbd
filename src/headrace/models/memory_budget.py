"""Whether this process has room for one more model: the machine's policy, with what models have taken here so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.models.admission import Evict, Go, Held, Refuse, Verdict, Wait, admit
from headrace.models.memory import memory_available, memory_limit, resident_bytes


class MemoryBudget:
    """Used by one thread at a time.

    Of a model that has not been loaded here yet nothing is certain but the size of its files: the first one is loaded
    alone, to be measured; others are thought to be as large as the largest so far, but not refused for that.

    Args:
        available: bytes that can be allocated now.
        limit: bytes that there are in all.
        resident: bytes that this process uses.
    """

    def __init__(
        self,
        available: Callable[[], int] = memory_available,
        limit: Callable[[], int] = memory_limit,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._available = available
        self._limit = limit
        self._resident = resident
        self._before = 0
        self._alone = False
        self._taken: dict[Any, int] = {}

    def taken(self, name: Any) -> int:
        """Bytes that loading that model has taken, at most; 0: it has not been measured."""
        return self._taken.get(name, 0)

    def verdict(self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]) -> Verdict:
        """Decides about a model that is to be loaded.

        Args:
            name: of the model.
            at_least: bytes that it takes, going by its files; None: nothing is known.
            held: how many use each model that is loaded, by its name; that which was used least recently comes first.
            loading: the names of those that are being loaded.
        """
        known = name in self._taken
        if loading and not self._taken:
            return Wait()
        largest = max(self._taken.values(), default=0)
        sizes = [self._taken.get(one, largest) for one in held]
        models = [Held(str(at), sizes[at], users, at) for at, users in enumerate(held.values())]
        need = max(self._taken.get(name, largest), at_least or 0)
        needs = [self._taken.get(one, largest) for one in loading]
        available, limit = self._available(), self._limit()
        verdict = admit(need or None, models, needs, available, limit)
        if isinstance(verdict, Refuse) and not known:
            idle = tuple(model.key for model in models if not model.leases)
            verdict = Evict(idle) if idle else admit(at_least, models, needs, available, limit)
        names = list(held)
        return Evict(tuple(names[int(key)] for key in verdict.keys)) if isinstance(verdict, Evict) else verdict

    def begins(self, loading: Sequence[Any]) -> None:
        """One more model is being loaded, beside those."""
        self._alone = not loading
        self._before = self._resident()

    def ended(self, name: Any) -> None:
        """That model has been loaded."""
        if self._alone:
            self._taken[name] = max(self.taken(name), self._resident() - self._before)


__all__ = ["Evict", "Go", "MemoryBudget", "Refuse", "Wait"]
