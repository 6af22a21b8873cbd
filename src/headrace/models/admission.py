"""Decides whether a model may be loaded now, and which models to evict for it: no threads, no clock.

A model of unknown size is loaded alone, which measures it. Models of known size are loaded concurrently as long as
their peaks fit together. ``MemoryBudget`` applies this to what models have taken in this process so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from headrace.core.errors import ModelMemoryError
from headrace.models.memory import memory_available, memory_limit, resident_bytes, trim_memory

MAX_MARGIN = 10**9
"""Bytes. A tenth of memory stays free for other programs, but not more than this: large machines do not need more."""
PATIENCE_SECS = 60.0
"""Until memory that other processes hold is taken for lost: they use a model for seconds, then may evict it."""
_LISTEN_SECS, _LONG_WAIT_SECS, _STAND_BACK_SECS = 0.1, 5.0, 0.25
_GIGABYTE, _MEGABYTE = 10**9, 10**6
_LARGE = 1 << 24
"""Bytes. Dropping this much is worth a garbage collection."""


class Held(NamedTuple):
    """A model that is in memory."""

    key: Any
    nbytes: int
    """Bytes that evicting it frees."""
    leases: int
    """How many users it has; only a model without any may be evicted."""
    last_used: float
    """When it was last used, by any clock."""


@dataclass(frozen=True)
class Admit:
    """The model may be loaded now."""


@dataclass(frozen=True)
class Evict:
    """Evict these models, then ask again."""

    keys: tuple[Any, ...]
    """Unused models, least recently used first, and no more than necessary."""


@dataclass(frozen=True)
class Wait:
    """Ask again when a load has ended or a model is gone."""


@dataclass(frozen=True)
class Refuse:
    """The model cannot be loaded."""

    reason: str
    """Includes the figures and what to do about it."""
    for_ever: bool = False
    """Whether it is larger than all memory; else there may be room once other programs hold less."""


Verdict = Admit | Evict | Wait | Refuse


def admit(
    need: int | None,
    held: Sequence[Held],
    loading: Sequence[int | None],
    available: int,
    limit: int,
    *,
    leaving: int = 0,
) -> Verdict:
    """Decides whether one model may be loaded.

    Args:
        need: peak bytes of loading it, or a lower bound; None: unknown.
        held: the models in memory.
        loading: the needs of loads in progress. Each counts in full, since it is unknown how much of it has been
            allocated, and so is missing from ``available``, already.
        available: bytes that can be allocated now.
        limit: bytes of memory in total.
        leaving: bytes of evicted models that are not free yet.
    """
    margin = margin_of(need, limit)
    if need is not None and need > limit - margin:
        figures = f"the memory that this process may use is {format_bytes(limit)} in all, of which"
        return Refuse(_text(need, margin, figures, "a smaller model"), for_ever=True)
    if None in loading or (need is None and loading):  # a model of unknown size is loaded alone
        return Wait()
    short = (need or 0) + sum(filter(None, loading)) + margin - min(available, limit)
    if short <= 0:
        return Admit()
    if evicted := _least_recently_used(short - leaving, held):
        return Evict(evicted)
    if loading or leaving:
        return Wait()
    used = format_bytes(sum(model.nbytes for model in held if model.leases))
    figures = f"models in use hold {used}, {format_bytes(available)} of {format_bytes(limit)} are free, of which"
    return Admit() if need is None else Refuse(_text(need, margin, figures, "fewer models at a time"))


def margin_of(need: int | None, limit: int) -> int:
    """Bytes that stay free: a tenth of the limit, but at most a gigabyte, and at most the model's own need.

    The need is a bound so that a small model on a nearly full machine is not refused for lack of a gigabyte.
    """
    margin = min(limit // 10, MAX_MARGIN)
    return margin if need is None else min(margin, need)


def _least_recently_used(short: int, held: Sequence[Held]) -> tuple[Any, ...]:
    """Keys of the idle models to evict to free ``short`` bytes; empty if all of them are too small, or none need go."""
    chosen: list[Held] = []
    for model in sorted((model for model in held if not model.leases), key=attrgetter("last_used", "key")):
        if sum(one.nbytes for one in chosen) < short:
            chosen.append(model)
    freed = sum(model.nbytes for model in chosen)
    if freed < short:
        return ()
    for model in reversed(chosen[:]):  # once a large model goes, smaller and older ones may stay
        if freed - model.nbytes >= short:
            chosen.remove(model)
            freed -= model.nbytes
    return tuple(model.key for model in chosen)


def _text(need: int, margin: int, figures: str, instead: str) -> str:
    return (
        f"loading it takes at least {format_bytes(need)}, and {figures} {format_bytes(margin)} stay free. Give the "
        f"machine or the container more memory, or use {instead}."
    )


def format_bytes(nbytes: int) -> str:
    """Formats bytes for people: in GB from a gigabyte on, in MB below."""
    if 0 < nbytes < _MEGABYTE:
        return "under 1 MB"
    return f"{nbytes / _GIGABYTE:.1f} GB" if nbytes >= _GIGABYTE else f"{nbytes / _MEGABYTE:.0f} MB"


class Neighbours(Protocol):
    """The other processes that share the memory, each with models of its own."""

    def ask(self) -> None:
        """Tells them that this process waits for memory; called again and again while it does."""
        ...

    def settle(self) -> None:
        """Tells them that it waits no longer."""
        ...

    def asked(self) -> tuple[float, float] | None:
        """Since when another process waits, and when it last said so, by the budget's clock; None: none does."""
        ...


class MemoryBudget:
    """A model cache's ``Room``: measures loads and admits further ones. Not thread-safe.

    The first model is loaded alone, which measures it. Others are assumed to be as large as the largest so far, or as
    their files, but an assumption never refuses a model.

    Args:
        available: returns the bytes that can be allocated now.
        limit: returns the bytes of memory in total.
        resident: returns the bytes that this process uses.
        patience: for how many seconds memory that others hold keeps loads waiting, before they are refused.
        now: returns the time in seconds.
        neighbours: the other processes; None: they are not told.
    """

    def __init__(
        self,
        available: Callable[[], int] = memory_available,
        limit: Callable[[], int] = memory_limit,
        resident: Callable[[], int] = resident_bytes,
        *,
        patience: float = PATIENCE_SECS,
        now: Callable[[], float] = time.monotonic,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._available = available
        self._limit = limit
        self._resident = resident
        self._patience = patience
        self._now = now
        self._short_since: float | None = None
        """When a load was first put off for what others hold, since the last that began."""
        self._neighbours = neighbours
        self._listened = self._dropped = self._stands_back_until = -math.inf
        """When they were last listened to, when models were last dropped, and until when loads let others go first."""
        self._before = 0
        self._alone = False
        self._taken: dict[Any, int] = {}

    def taken(self, name: Any) -> int:
        """The most bytes that loading this model has taken; 0: not measured yet."""
        return self._taken.get(name, 0)

    def make(
        self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]
    ) -> Sequence[Any] | None:
        """As of ``core.model_cache.Room``; a load that may begin is measured.

        If other processes hold the memory, all idle models are evicted: two that kept theirs would wait for each other.
        """
        if self._now() < self._stands_back_until:
            return None
        verdict = self.verdict(name, at_least, held, loading)
        if isinstance(verdict, Admit):
            if self._short_since is not None and self._neighbours is not None:
                self._neighbours.settle()
            self._short_since = None
            self.begins(loading)
            return ()
        if isinstance(verdict, Refuse) and not any(held.values()):
            if verdict.for_ever or not self._is_patient():
                raise ModelMemoryError(f"the model of {name!r}", verdict.reason)
            return tuple(held) or None
        return verdict.keys if isinstance(verdict, Evict) else None

    def _is_patient(self) -> bool:
        """Whether a load goes on waiting for what other processes hold, who are told."""
        now = self._now()
        if self._short_since is None:
            self._short_since = now
        is_patient = now - self._short_since < self._patience
        if self._neighbours is not None:
            (self._neighbours.ask if is_patient else self._neighbours.settle)()
        return is_patient

    def make_way(self, name: Any, idle: Sequence[Any]) -> Sequence[Any]:
        """As of ``core.model_cache.Room``; listens a few times a second.

        Loads then stand back for a moment, or they would take the memory themselves. A process that waits for long gets
        that of the model which is wanted here, too.
        """
        now = self._now()
        if not idle or self._neighbours is None or now - self._listened < _LISTEN_SECS:
            return ()
        self._listened = now
        since, at = self._neighbours.asked() or (now, -math.inf)
        if at <= self._dropped:  # it has yet to see what was freed
            return ()
        others = [one for one in idle if one != name]
        evicted = others[:1] or (idle if now - since > _LONG_WAIT_SECS else ())
        if evicted:
            self._stands_back_until = now + _STAND_BACK_SECS
        return evicted

    def verdict(self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]) -> Verdict:
        """Decides whether a model may be loaded; the arguments are those of ``make``."""
        known = name in self._taken
        if loading and not self._taken:
            return Wait()
        largest = max(self._taken.values(), default=0)
        models = [Held(one, self._taken.get(one, largest), users, at) for at, (one, users) in enumerate(held.items())]
        need = max(self._taken.get(name, largest), at_least or 0)
        needs = [self._taken.get(one, largest) for one in loading]
        available, limit = self._available(), self._limit()
        verdict = admit(need or None, models, needs, available, limit)
        if isinstance(verdict, Refuse) and not known:  # the need was an assumption: evict what is idle, then try
            idle = tuple(model.key for model in models if not model.leases)
            return Evict(idle) if idle else admit(at_least, models, needs, available, limit)
        return verdict

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
        self._dropped = self._now()
