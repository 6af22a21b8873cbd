"""Which model may be loaded now, and which must go for it: a policy, without threads and clocks.

A model of which nothing is known is loaded alone, and what it took is its need from then on. The others go side by side
while all of their peaks fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_MARGIN = 10**9
"""Bytes. The tenth of a small machine's memory that stays free for others is more than a large one's needs."""
_GIGABYTE, _MEGABYTE = 10**9, 10**6


class Held(NamedTuple):
    """A model that is in memory."""

    key: str
    nbytes: int
    """Bytes that are free once it has gone."""
    leases: int
    """How many use it."""
    last_used: float
    """When it was last used, by any clock."""


@dataclass(frozen=True)
class Go:
    """The model may be loaded now."""


@dataclass(frozen=True)
class Evict:
    """These are to go first; then ask again."""

    keys: tuple[str, ...]
    """Of models that nobody uses: those that were used least recently, as few as make enough room."""


@dataclass(frozen=True)
class Wait:
    """Ask again when a model has been loaded, or has gone."""


@dataclass(frozen=True)
class Refuse:
    """The model cannot be loaded."""

    reason: str
    """With the figures and the cure."""


Verdict = Go | Evict | Wait | Refuse


def admit(
    need: int | None,
    held: Sequence[Held],
    loading: Sequence[int | None],
    available: int,
    limit: int,
    *,
    leaving: int = 0,
) -> Verdict:
    """Decides about one model that is to be loaded.

    Args:
        need: bytes that loading it takes at its peak, or at least takes; None: nothing is known of it.
        held: the models that are in memory.
        loading: the needs of those that are being loaded. Each counts in full, since nobody knows how much of it
            ``available`` lacks already.
        available: bytes that can be allocated now.
        limit: bytes of memory that there are in all.
        leaving: bytes of evicted models that are not free yet.
    """
    margin = margin_of(need, limit)
    if need is not None and need > limit - margin:
        return Refuse(_never(need, limit, margin))
    if None in loading or (need is None and loading):
        return Wait()
    short = (need or 0) + sum(filter(None, loading)) + margin - min(available, limit)
    if short <= 0:
        return Go()
    if evicted := _least_recently_used(short - leaving, held):
        return Evict(evicted)
    if loading or leaving:
        return Wait()
    return Go() if need is None else Refuse(_no_room(need, held, available, limit, margin))


def margin_of(need: int | None, limit: int) -> int:
    """Bytes that stay free: a tenth of the limit, yet no more than a gigabyte, nor than the model's own need.

    The last is for small models on machines that are nearly full: they are not refused for want of a gigabyte.
    """
    margin = min(limit // 10, MOST_MARGIN)
    return margin if need is None else min(margin, need)


def _least_recently_used(short: int, held: Sequence[Held]) -> tuple[str, ...]:
    """The idle models that make so much room; none if all of them do not, or none need."""
    chosen: list[Held] = []
    for model in sorted((model for model in held if not model.leases), key=_age):
        if sum(one.nbytes for one in chosen) < short:
            chosen.append(model)
    freed = sum(model.nbytes for model in chosen)
    if freed < short:
        return ()
    for model in reversed(chosen[:]):  # small old ones need not go once a large one does
        if freed - model.nbytes >= short:
            chosen.remove(model)
            freed -= model.nbytes
    return tuple(model.key for model in chosen)


def _age(model: Held) -> tuple[float, str]:
    return model.last_used, model.key


def _never(need: int, limit: int, margin: int) -> str:
    return (
        f"loading it takes at least {size(need)}, and the memory that this process may use is {size(limit)} in all, of "
        f"which {size(margin)} stay free. Give the machine or the container more memory, or use a smaller model."
    )


def _no_room(need: int, held: Sequence[Held], available: int, limit: int, margin: int) -> str:
    used = [model.nbytes for model in held if model.leases]
    idle = sum(model.nbytes for model in held if not model.leases)
    models = f"{len(used)} model{'s' * (len(used) != 1)} in use hold {size(sum(used))}"
    unused = f", unused ones {size(idle)} that would not suffice" if idle else ""
    return (
        f"loading it takes at least {size(need)}, {size(available)} of {size(limit)} are free, of which {size(margin)} "
        f"stay so; {models}{unused}. Give the machine or the container more memory, or use fewer models at a time."
    )


def size(nbytes: int) -> str:
    """As people read it: in GB from a gigabyte on, in MB below."""
    return f"{nbytes / _GIGABYTE:.1f} GB" if nbytes >= _GIGABYTE else f"{nbytes / _MEGABYTE:.0f} MB"
