"""Whether this process has room for one more model: applies ``admission`` to what models have taken here so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.core.errors import ModelMemoryError
from headrace.models.admission import Admit, Evict, Held, Refuse, Verdict, Wait, admit
from headrace.models.memory import memory_available, memory_limit, resident_bytes, trim_memory

_LARGE = 1 << 24
"""Bytes. Dropping this much is worth a garbage collection."""


class MemoryBudget:
    """A model cache's ``Room``: measures loads and admits further ones. Not thread-safe.

    The size of a model that has not been loaded here is unknown, except for that of its files. The first model is
    loaded alone, which measures it. Others are assumed to be as large as the largest so far, but an assumption never
    refuses a model.

    Args:
        available: returns the bytes that can be allocated now.
        limit: returns the bytes of memory in total.
        resident: returns the bytes that this process uses.
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
        """The most bytes that loading this model has taken; 0: not measured yet."""
        return self._taken.get(name, 0)

    def make(
        self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]
    ) -> Sequence[Any] | None:
        """The idle models to evict before a load; none: it may begin, and is measured. None: wait.

        Raises:
            ModelMemoryError: there is no room, although no other model is in use.
        """
        verdict = self.verdict(name, at_least, held, loading)
        if isinstance(verdict, Admit):
            self.begins(loading)
            return ()
        if isinstance(verdict, Refuse) and not any(held.values()):
            raise ModelMemoryError(f"the model of {name!r}", verdict.reason)
        return verdict.keys if isinstance(verdict, Evict) else None

    def verdict(self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]) -> Verdict:
        """Decides whether a model may be loaded.

        Args:
            name: the model's name.
            at_least: its size in bytes according to its files; None: unknown.
            held: the number of users of each loaded model by name, least recently used first.
            loading: the names of the models being loaded.
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
        if isinstance(verdict, Refuse) and not known:  # the need was an assumption: evict what is idle, then try
            idle = tuple(model.key for model in models if not model.leases)
            verdict = Evict(idle) if idle else admit(at_least, models, needs, available, limit)
        names = list(held)
        return Evict(tuple(names[int(key)] for key in verdict.keys)) if isinstance(verdict, Evict) else verdict

    def begins(self, loading: Sequence[Any]) -> None:
        """Notes that a load begins while the loads of these models are in progress."""
        self._alone = not loading
        self._before = self._resident()

    def loaded(self, name: Any) -> None:
        """Notes that a load has ended; what it took is known only if it ran alone."""
        if self._alone:
            self._taken[name] = max(self.taken(name), self._resident() - self._before)

    def dropped(self, names: Sequence[Any]) -> None:
        """Returns the memory of large models to the system, once they have been dropped."""
        if sum(map(self.taken, names)) >= _LARGE:
            trim_memory()
