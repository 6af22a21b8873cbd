"""Finds the elements that kill or hang their model host, so that the rest of the batch survives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from headrace.core.result import Stage

ResultT = TypeVar("ResultT")

MAX_TIMEOUTS = 3
"""How many elements of a batch may time out after its first timeout; one more fails everything unanswered.

Each costs the whole time limit, so a model that hangs on everything must not cost one for each element.
"""

_FEW = 32
"""Up to this many elements are tried one by one after a timeout, however long that takes."""

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


Attempt = Callable[[Sequence[int], Mapping[int, InjectedFailure]], ResultT | LostBatch]
"""Runs the elements at these positions together; those with an injected failure fail as it says."""


def parts_after_timeout(count: int, call_secs: float, timeout_secs: float) -> int:
    """Number of parts into which to cut a group whose inference timed out.

    One by one costs a call for each element; parts cost one more timeout if an element hangs. So elements go one by
    one if all those calls take no longer than a timeout; else there are about as many parts as elements in each.

    Args:
        count: number of elements, at least 2.
        call_secs: the shortest time of a model call, in seconds; infinite: unknown.
        timeout_secs: the time limit, in seconds.
    """
    is_quick = count <= _FEW or count * call_secs <= timeout_secs
    return count if is_quick else math.ceil(math.sqrt(count))


def isolate_fatal(
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    *,
    gives_up_single: bool = False,
    parts: Callable[[int], int] = lambda count: count,
    too_large: Callable[[Sequence[int]], None] = lambda _: None,
) -> Iterator[tuple[Sequence[int], ResultT | LostBatch]]:
    """Tries a batch whose host was lost again, until its fatal elements are known and the others answered.

    A *death* may have an outside cause: the batch is repeated once as it is, unless memory ran out. If the host dies
    again in inference, the batch is halved; a half whose host dies is halved at once, down to single elements. A single
    element is repeated once, since the deaths of its group prove nothing about it, and is then fatal. If hosts die
    twice in one element's pre- or postprocessing, it is fatal for that operation, and the others stay together.

    A *timeout* is expensive: a group that overruns in inference is cut into ``parts``; an element that overruns
    alone, or in its own operation, is fatal at once. If a group that overran has no such element, it was too large:
    other groups of its size are then cut into parts of the size that succeeded.

    Fatal elements are tried once more with their failure injected, so that the host makes the failure record from the
    right value. An element that is lost even so is given up, after a death only the second time. ``MAX_TIMEOUTS``
    ends the search early, and so does ``LETHAL_IN_A_ROW``, unless one of ``LETHAL_PROBES`` elements, spread over the
    rest and tried alone, survives.

    Args:
        positions: distinct positions in the batch of the elements that were tried together, at least one.
        first: how that attempt was lost.
        attempt: runs some of them, in a new host if the last was lost; its answer covers all of them.
        gives_up_single: whether a single element that is fatal in inference is given up at once. Right if there is no
            preprocessing: then the caller already has the value that inference got.
        parts: number of parts into which to cut a group of that size whose inference timed out.
        too_large: called with elements that timed out together, although each was answered afterwards.

    Yields:
        (part, answer) as they come; the parts partition ``positions``. If the answer is a LostBatch, all elements of
        the part fail with its error. n elements cost at most 6n attempts, whatever attempts return; one that is lethal
        in inference costs at most 2 ceil(log2 n) + 3.
    """
    left, lost = positions, first
    # Each round searches until it has met too many lethal elements in a row. Probes then decide: if one survives, a new
    # round searches the rest; otherwise the rest fails.
    while True:
        left, lost = yield from _isolate_fatal(left, lost, attempt, _FatalSearch(gives_up_single, parts), too_large)
        if not left:
            return
        probes = sorted({(2 * number + 1) * len(left) // (2 * LETHAL_PROBES) for number in range(LETHAL_PROBES)})
        left, is_hopeless = yield from _probe(probes, left, attempt, lambda answer: isinstance(answer, LostBatch))
        if not left:
            return
        answer = lost if is_hopeless else attempt(left, {})
        if is_hopeless or not isinstance(answer, LostBatch):
            yield left, answer
            return
        lost = answer


def _isolate_fatal(
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    trial: _FatalSearch,
    too_large: Callable[[Sequence[int]], None],
) -> Generator[tuple[Sequence[int], ResultT | LostBatch], None, tuple[Sequence[int], LostBatch]]:
    """Like ``isolate_fatal`` until too many in a row were lethal; returns the elements left, and the last loss."""
    waiting: list[_TriedPart] = []  # a stack, so that the parts of a group are settled before the next group
    groups: list[_Suspects] = []  # each contains the next one
    part = _TriedPart(positions, repeatable=True)
    answer: ResultT | LostBatch = first
    while True:
        settled = part.positions
        if isinstance(answer, LostBatch):
            settled, again = trial.policy(part, answer)
            if trial.is_over:
                left = [position for one in (part, *reversed(waiting)) for position in one.positions]
                # After too many timeouts all fail; after too many deaths only the fatal ones, and probes try the rest.
                known = set(left) if trial.is_late else {*settled, *trial.fatal}
                yield [position for position in left if position in known], answer
                return [position for position in left if position not in known], answer
            if answer.timed_out and len(again) > 1:
                groups.append(_Suspects(part.positions, len(again[0].positions), len(part.positions), trial.overran))
            waiting.extend(reversed(again))
        else:
            trial.clear(part.positions)
        if settled:
            yield settled, answer
            for group in _finished(groups, len(settled)):
                if group.overran == trial.overran:  # all answered without another timeout: it was merely too large
                    too_large(group.positions)
                    waiting = [piece for one in waiting for piece in reversed(_recut(one, group))]
        if not waiting:
            return (), first
        part = waiting.pop()
        answer = attempt(part.positions, trial.injected_among(part.positions))


Search = Callable[[Sequence[int], LostBatch], Iterator[tuple[Sequence[int], ResultT | LostBatch]]]
"""``isolate_fatal`` with all but its first two arguments bound."""


def probe_hosts(
    places: Iterable[int],
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    *,
    search: Search[ResultT],
    is_hopeless: Callable[[], bool],
) -> Iterator[tuple[Sequence[int], ResultT | LostBatch]]:
    """While everything has been failing: tries some elements alone, and the others only if that gives hope.

    Args:
        places: indices into ``positions`` of the elements to try alone.
        positions: distinct positions in the batch of the elements that were tried together.
        first: how that attempt was lost; without hope the other elements fail with its error.
        attempt: runs some of them, in a new host if the last was lost.
        search: searches the other elements if they are lost again.
        is_hopeless: asked after each element that is tried alone, once the caller has its answer.

    Yields:
        (part, answer), as ``isolate_fatal`` does.
    """
    others, is_dead = yield from _probe(places, positions, attempt, lambda _: is_hopeless())
    if not others:
        return
    answer = first if is_dead else attempt(others, {})
    if isinstance(answer, LostBatch) and answer is not first:
        yield from search(others, answer)
    else:
        yield others, answer


def _probe(
    places: Iterable[int],
    positions: Sequence[int],
    attempt: Attempt[ResultT],
    is_hopeless: Callable[[ResultT | LostBatch], bool],
) -> Generator[tuple[Sequence[int], ResultT | LostBatch], None, tuple[list[int], bool]]:
    """Tries elements alone until one gives hope; returns the others, and whether it is still hopeless.

    With hope, elements whose host died are tried once more, since the death may have had an outside cause.
    """
    others = list(positions)
    died: list[tuple[Sequence[int], LostBatch]] = []
    is_dead = True
    for place in places:
        alone = [positions[place]]
        others.remove(positions[place])
        answer = attempt(alone, {})
        if isinstance(answer, LostBatch) and not answer.timed_out:
            died.append((alone, answer))
        else:
            yield alone, answer
        is_dead = is_hopeless(answer)
        if not is_dead:
            break
    yield from ((alone, lost if is_dead else attempt(alone, {})) for alone, lost in died)
    return others, is_dead


class _TriedPart(NamedTuple):
    """Elements that are tried together."""

    positions: Sequence[int]
    repeatable: bool
    """Whether it is tried once more after its next death, which may have an outside cause."""


@dataclass
class _Suspects:
    """Elements that timed out together and were cut into parts."""

    positions: Sequence[int]
    part_size: int
    """Size of the parts."""
    unsettled: int
    """How many elements have no answer yet."""
    overran: int
    """How many elements had timed out by themselves when this group did."""


def _finished(groups: list[_Suspects], settled: int) -> Iterator[_Suspects]:
    """Notes that this many elements, which are in all groups, are settled; yields groups that are settled entirely."""
    for group in groups:
        group.unsettled -= settled
    while groups and not groups[-1].unsettled:
        yield groups.pop()


class _FatalSearch:
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
        self._lost_though_condemned: set[int] = set()
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

    def policy(self, part: _TriedPart, lost: LostBatch) -> tuple[Sequence[int], list[_TriedPart]]:
        """Notes a loss; returns the elements that are given up, and the parts to try next."""
        suspect = _suspect(part.positions, lost)
        if suspect is not None and suspect in self._injected_failures:  # lost although its failure was injected
            if lost.timed_out or suspect in self._lost_though_condemned:
                return self._give_up(suspect, part, lost)
            self._lost_though_condemned.add(suspect)
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

    def _give_up(self, suspect: int, part: _TriedPart, lost: LostBatch) -> tuple[Sequence[int], list[_TriedPart]]:
        """Gives the suspect up and tries the rest of its part next."""
        self._count(suspect, lost)
        others = [position for position in part.positions if position != suspect]
        return (suspect,), [_TriedPart(others, part.repeatable or len(others) == 1)] if others else []

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


def _split(positions: Sequence[int], count: int) -> list[_TriedPart]:
    """Cuts a group into ``count`` parts; single elements may be repeated once."""
    bounds = [len(positions) * n // count for n in range(count + 1)]
    parts = [positions[start:stop] for start, stop in pairwise(bounds)]
    return [_TriedPart(part, repeatable=len(part) == 1) for part in parts]


def _recut(part: _TriedPart, group: _Suspects) -> list[_TriedPart]:
    """Cuts a part that is as large as a group that was too large into parts of the size that succeeded."""
    size = len(part.positions)
    return [part] if size < len(group.positions) else _split(part.positions, math.ceil(size / group.part_size))
