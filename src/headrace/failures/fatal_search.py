"""What the attempts have shown so far about a batch whose host was lost, and what to try next."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headrace.core.result import Stage

MAX_TIMEOUTS = 3
"""How many elements of a batch may time out after its first timeout; one more fails everything unanswered.

Each costs the whole time limit, so a model that hangs on everything must not cost one for each element.
"""

LETHAL_IN_A_ROW = 16
"""After this many lethal elements, with no answer to another in between, everything unanswered fails.

Each costs new hosts, so a model that dies of everything must not cost two for each element.
"""

LETHAL_PROBES = 3
"""How many elements from elsewhere in the batch are tried alone before that: bad elements are often neighbours."""


@dataclass(frozen=True)
class LostBatch:
    """An attempt without an answer, because its host hung or died."""

    error: BaseException
    """The error of those elements that are not tried again."""
    timed_out: bool
    """Whether the host was killed because an operation overran; otherwise it died."""
    stage: Stage
    """The stage of the operation that ran."""
    position: int | None = None
    """Position in the whole batch of the element whose own pre- or postprocessing ran; None: the inference of all
    elements of the attempt ran, or it is unknown."""
    index: int = 0
    """Which operation of its stage, counted from 0."""
    too_large: bool = False
    """Whether the host died for lack of memory, so that fewer elements may succeed."""


@dataclass(frozen=True)
class InjectedFailure:
    """Spares a host from a fatal element: this operation does not run on it, but fails with this error."""

    stage: Stage
    index: int
    """Which operation of its stage, counted from 0."""
    error: BaseException


class TriedPart(NamedTuple):
    """Elements that are tried together."""

    positions: Sequence[int]
    repeatable: bool
    """Whether it is tried once more after its next death, which may have an outside cause."""


@dataclass
class Suspects:
    """Elements that timed out together and were cut into parts."""

    positions: Sequence[int]
    part_size: int
    """Size of the parts."""
    unsettled: int
    """How many elements have no answer yet."""
    overran: int
    """How many elements had timed out by themselves when this group did."""


def finished(groups: list[Suspects], settled: int) -> Iterator[Suspects]:
    """Notes that this many elements, which are in all groups, are settled; yields groups that are settled entirely."""
    for group in groups:
        group.unsettled -= settled
    while groups and not groups[-1].unsettled:
        yield groups.pop()


class FatalSearch:
    """What the attempts have shown so far about a batch's elements."""

    def __init__(self, gives_up_single: bool, parts: Callable[[int], int]) -> None:
        self._settles_alone = gives_up_single
        self._parts = parts
        self._injected_failures: dict[int, InjectedFailure] = {}
        self.overran = 0
        """How many elements have timed out by themselves."""
        self._group_overran = False
        """Whether a group has timed out in inference."""
        self._suspected: set[int] = set()
        """Elements to which a loss was traced before."""
        self._lost_despite_injection: set[int] = set()
        """Elements in whose operation a host died although their failure was injected."""
        self._lethal_in_a_row: set[int] = set()

    @property
    def is_late(self) -> bool:
        """Whether what is still unanswered should fail without another attempt."""
        return self.overran + self._group_overran > 1 + MAX_TIMEOUTS

    @property
    def is_over(self) -> bool:
        """Whether the search ends here."""
        return self.is_late or len(self._lethal_in_a_row) >= LETHAL_IN_A_ROW

    @property
    def fatal(self) -> Collection[int]:
        """Positions of the fatal elements."""
        return self._injected_failures.keys()

    def injected_among(self, positions: Sequence[int]) -> dict[int, InjectedFailure]:
        """The injected failures of the fatal ones among these elements."""
        return {
            position: self._injected_failures[position] for position in positions if position in self._injected_failures
        }

    def clear(self, positions: Sequence[int]) -> None:
        """Notes an answer; one about fatal elements only proves nothing, since their operations did not run."""
        if any(position not in self._injected_failures for position in positions):
            self._lethal_in_a_row.clear()

    def note_loss(self, part: TriedPart, lost: LostBatch) -> tuple[Sequence[int], list[TriedPart]]:
        """Notes a loss; returns the elements that are given up, and the parts to try next."""
        suspect = _suspect(part.positions, lost)
        if suspect is not None and suspect in self._injected_failures:  # lost although its failure was injected
            if lost.timed_out or suspect in self._lost_despite_injection:
                return self._give_up(suspect, part, lost)
            self._lost_despite_injection.add(suspect)
            return (), [part]
        is_first_suspicion = len(part.positions) > 1 and suspect is not None and suspect not in self._suspected
        if suspect is not None:
            self._suspected.add(suspect)
        would_help = len(part.positions) == 1 or not lost.too_large  # a group that ran out of memory would do so again
        if not lost.timed_out and (part.repeatable or is_first_suspicion) and would_help:
            return (), [part._replace(repeatable=False)]
        if suspect is None:
            self._group_overran |= lost.timed_out
            return (), _split(part.positions, self._parts(len(part.positions)) if lost.timed_out else 2)
        injected_failure = _injected_failure(suspect, lost)
        if self._settles_alone and injected_failure.stage is Stage.INFERENCE:  # so it was tried alone
            return self._give_up(suspect, part, lost)
        self._injected_failures[suspect] = injected_failure
        self._count(suspect, lost)
        return (), [part]

    def _give_up(self, suspect: int, part: TriedPart, lost: LostBatch) -> tuple[Sequence[int], list[TriedPart]]:
        """Gives the suspect up and tries the rest of its part next."""
        self._count(suspect, lost)
        others = [position for position in part.positions if position != suspect]
        return (suspect,), [TriedPart(others, part.repeatable or len(others) == 1)] if others else []

    def _count(self, suspect: int, lost: LostBatch) -> None:
        self.overran += lost.timed_out
        if not lost.timed_out:
            self._lethal_in_a_row.add(suspect)


def _suspect(positions: Sequence[int], lost: LostBatch) -> int | None:
    """The element that alone can have caused the loss, if there is one."""
    if len(positions) > 1:
        return lost.position if _names_one(positions, lost) else None
    return positions[0]


def _injected_failure(suspect: int, lost: LostBatch) -> InjectedFailure:
    """Injects the failure into the operation that ran, or into inference if that is unknown."""
    if _names_one([suspect], lost):
        return InjectedFailure(lost.stage, lost.index, lost.error)
    return InjectedFailure(Stage.INFERENCE, 0, lost.error)


def _names_one(positions: Sequence[int], lost: LostBatch) -> bool:
    """Whether the pre- or postprocessing of one of these elements ran; inference belongs to no single element."""
    return lost.stage is not Stage.INFERENCE and lost.position in positions


def _split(positions: Sequence[int], count: int) -> list[TriedPart]:
    """Cuts a group into ``count`` parts; single elements may be repeated once."""
    bounds = [len(positions) * n // count for n in range(count + 1)]
    parts = [positions[start:stop] for start, stop in pairwise(bounds)]
    return [TriedPart(part, repeatable=len(part) == 1) for part in parts]


def recut(part: TriedPart, group: Suspects) -> list[TriedPart]:
    """Cuts a part that is as large as a group that was too large into parts of the size that succeeded."""
    size = len(part.positions)
    return [part] if size < len(group.positions) else _split(part.positions, math.ceil(size / group.part_size))
