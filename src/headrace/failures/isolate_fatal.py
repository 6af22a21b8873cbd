"""Finds the elements that kill or hang their model host, so that the rest of the batch outlasts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from headrace.core.result import Stage

ResultT = TypeVar("ResultT")

TIMEOUTS_BORNE = 3
"""How many elements of a batch may time out after its first timeout; the next one fails what is unanswered.

Each costs the whole time limit, so a model that hangs on everything must not cost one for each element.
"""

_FEW = 32
"""So many elements are tried one by one after a timeout, whatever that takes."""

LETHAL_IN_A_ROW = 16
"""After how many lethal elements, with no answer to another in between, what is unanswered fails.

Each costs new hosts, so a model that dies of everything must not cost two for each element.
"""

LETHAL_PROBES = 3
"""So many others are tried alone before that: neighbours are often bad together."""


@dataclass(frozen=True)
class LostBatch:
    """An attempt that got no answer, since its host hung or died."""

    error: BaseException
    """With what those elements fail that are not tried again."""
    timed_out: bool
    """Whether the host was killed because an operation overran; else it died."""
    stage: Stage
    """The kind of operation that ran."""
    position: int | None = None
    """The element, by its place in the whole batch, whose pre- or postprocessing operation ran; None: the inference
    of all that were tried together, or nobody knows."""
    index: int = 0
    """Which operation of its stage, counted from 0."""
    too_large: bool = False
    """Whether the host died for want of memory, so that fewer elements may do."""


@dataclass(frozen=True)
class InjectedFailure:
    """What an element is fatal to: this operation is not run on it, but fails with this error."""

    stage: Stage
    index: int
    """Which operation of its stage, counted from 0."""
    error: BaseException


Attempt = Callable[[Sequence[int], Mapping[int, InjectedFailure]], ResultT | LostBatch]
"""Runs the elements at these positions together; the fatal among them fail as their sentences say."""


def parts_after_timeout(count: int, call_secs: float, timeout_secs: float) -> int:
    """Into how many parts a group is cut whose inference timed out.

    One by one costs a call for each element, parts cost one more timeout if an element hangs. So all go one by one if
    that takes no longer than a timeout; else there are as many parts as elements in each.

    Args:
        count: of the group's elements, at least 2.
        call_secs: what a call of the model takes at least; infinite: not known.
        timeout_secs: the time limit.
    """
    is_quick = count <= _FEW or count * call_secs <= timeout_secs
    return count if is_quick else math.ceil(math.sqrt(count))


def isolate_fatal(
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    *,
    settles_alone: bool = False,
    parts: Callable[[int], int] = lambda count: count,
    too_large: Callable[[Sequence[int]], None] = lambda _: None,
) -> Iterator[tuple[Sequence[int], ResultT | LostBatch]]:
    """Tries a batch whose host was lost again, until what is lethal or endless is fatal and the rest answered.

    A *death* may be an outsider's doing: the batch is repeated once as it is, unless it was for want of memory. If it
    dies again in inference it is halved, and a half that dies is halved at once, until an element stands alone; that
    one is repeated once, since the deaths of its group prove nothing about it, and then fatal. If it dies twice in
    one element's pre- or postprocessing, that element is fatal for that operation and the others stay together. A
    *timeout* is dear: a group that overruns in inference is cut into ``parts``; an element that overruns alone, or in
    an operation of its own, is fatal at once. If no element of a group is fatal for a timeout, there were too
    many of them: whatever else is as large is cut into parts of the size that went well.

    Condemned elements are tried once more, so that the host can make their failures of the right value; an element
    that is lost although fatal is given up, after a death the second time. ``TIMEOUTS_BORNE`` ends it all early,
    and so does ``LETHAL_IN_A_ROW``, unless one of ``LETHAL_PROBES`` elements survives that are tried alone then, from
    all over what is left.

    Args:
        positions: distinct places in the batch of the elements that were tried together, at least one.
        first: what happened to them.
        attempt: runs some of them, in another host where the last was lost; its answer is about all of them.
        settles_alone: whether an element that stands alone and is fatal for inference is given up at once. Right
            where there is no preprocessing: the caller has what its inference was given.
        parts: into how many parts a group of so many elements is cut whose inference timed out.
        too_large: is told of elements that timed out together, though each had an answer afterwards.

    Yields:
        (part, answer) as they come; the parts together are ``positions``, each once. Every element of a part whose
        answer is a Lost is to fail with its error. n elements cost at most 6n attempts, whatever attempts return;
        one that is lethal in inference costs at most 2 ceil(log2 n) + 3.
    """
    left, lost = positions, first
    while True:
        left, lost = yield from _isolate_fatal(left, lost, attempt, _FatalSearch(settles_alone, parts), too_large)
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
    """As ``isolate_fatal``, until too many in a row were lethal; returns those not known of yet, and the last loss."""
    waiting: list[_TriedPart] = []
    groups: list[_Suspects] = []
    part = _TriedPart(positions, repeatable=True)
    answer: ResultT | LostBatch = first
    while True:
        settled = part.positions
        if isinstance(answer, LostBatch):
            settled, again = trial.policy(part, answer)
            if trial.is_over:
                left = [position for one in (part, *reversed(waiting)) for position in one.positions]
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
                if group.overran == trial.overran:
                    too_large(group.positions)
                    waiting = [piece for one in waiting for piece in reversed(_recut(one, group))]
        if not waiting:
            return (), first
        part = waiting.pop()
        answer = attempt(part.positions, trial.injected_among(part.positions))


Search = Callable[[Sequence[int], LostBatch], Iterator[tuple[Sequence[int], ResultT | LostBatch]]]
"""``isolate_fatal``, with all its arguments but the first two."""


def probe_hosts(
    places: Iterable[int],
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    *,
    search: Search[ResultT],
    is_hopeless: Callable[[], bool],
) -> Iterator[tuple[Sequence[int], ResultT | LostBatch]]:
    """Where everything has been failing: tries some elements alone, and the others only if that has given hope.

    Args:
        places: of those that are tried alone, among the positions.
        positions: see ``isolate_fatal``, as for ``first`` and ``attempt``.
        first: what happened to all of them; the others fail with it if there is no hope.
        attempt: runs some of them.
        search: sees to the others, should they be lost again.
        is_hopeless: is asked after each of those that are tried alone, when the caller has its answer.

    Yields:
        As ``isolate_fatal`` does.
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
    """Tries elements alone while it is hopeless; returns the others, and whether it still is.

    Once there is hope, what died before is tried once more: an outsider may have killed its host.
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
    """Whether its next death is taken for an outsider's doing."""


@dataclass
class _Suspects:
    """Elements that timed out together."""

    positions: Sequence[int]
    part_size: int
    """How many of them are tried together since then."""
    unsettled: int
    """How many of them have no answer yet."""
    overran: int
    """How many elements had been fatal for a timeout when this one did."""


def _finished(groups: list[_Suspects], settled: int) -> Iterator[_Suspects]:
    """Takes note that so many elements, which are in all groups, are settled; gives groups of which none is left."""
    for group in groups:
        group.unsettled -= settled
    while groups and not groups[-1].unsettled:
        yield groups.pop()


class _FatalSearch:
    """What the attempts have shown so far about the elements of a batch."""

    def __init__(self, settles_alone: bool, parts: Callable[[int], int]) -> None:
        self._settles_alone = settles_alone
        self._parts = parts
        self._injected_failures: dict[int, InjectedFailure] = {}
        self.overran = 0
        """How many elements have been found to."""
        self._together_they_overran = False
        self._suspected: set[int] = set()
        """In whose own operation a host died once."""
        self._lost_though_condemned: set[int] = set()
        self._lethal_in_a_row: set[int] = set()

    @property
    def is_late(self) -> bool:
        """Whether what is still unanswered should fail without another attempt."""
        return self.overran + self._together_they_overran > 1 + TIMEOUTS_BORNE

    @property
    def is_over(self) -> bool:
        """Whether the search ends here."""
        return self.is_late or len(self._lethal_in_a_row) >= LETHAL_IN_A_ROW

    @property
    def fatal(self) -> Collection[int]:
        """Those that have a sentence."""
        return self._injected_failures.keys()

    def injected_among(self, positions: Sequence[int]) -> dict[int, InjectedFailure]:
        """The sentences of those that are fatal."""
        return {
            position: self._injected_failures[position] for position in positions if position in self._injected_failures
        }

    def clear(self, positions: Sequence[int]) -> None:
        """Takes note of an answer; one about fatal elements only shows no more than that they were spared."""
        if any(position not in self._injected_failures for position in positions):
            self._lethal_in_a_row.clear()

    def policy(self, part: _TriedPart, lost: LostBatch) -> tuple[Sequence[int], list[_TriedPart]]:
        """Takes note of a loss: which elements are given up, and what is tried next."""
        suspect = _suspect(part.positions, lost)
        if suspect is not None and suspect in self._injected_failures:
            if lost.timed_out or suspect in self._lost_though_condemned:
                return self._give_up(suspect, part, lost)
            self._lost_though_condemned.add(suspect)
            return (), [part]
        is_first_suspicion = len(part.positions) > 1 and suspect is not None and suspect not in self._suspected
        if suspect is not None:
            self._suspected.add(suspect)
        would_help = len(part.positions) == 1 or not lost.too_large
        if not lost.timed_out and (part.repeatable or is_first_suspicion) and would_help:
            return (), [part._replace(repeatable=False)]
        if suspect is None:
            self._together_they_overran |= lost.timed_out
            return (), _split(part.positions, self._parts(len(part.positions)) if lost.timed_out else 2)
        injected_failure = _injected_failure(suspect, lost)
        if self._settles_alone and injected_failure.stage is Stage.INFERENCE:  # then it stands alone
            return self._give_up(suspect, part, lost)
        self._injected_failures[suspect] = injected_failure
        self._count(suspect, lost)
        return (), [part]

    def _give_up(self, suspect: int, part: _TriedPart, lost: LostBatch) -> tuple[Sequence[int], list[_TriedPart]]:
        """Goes on without the suspect."""
        self._count(suspect, lost)
        others = [position for position in part.positions if position != suspect]
        return (suspect,), [_TriedPart(others, part.repeatable or len(others) == 1)] if others else []

    def _count(self, suspect: int, lost: LostBatch) -> None:
        self.overran += lost.timed_out
        if not lost.timed_out:
            self._lethal_in_a_row.add(suspect)


def _suspect(positions: Sequence[int], lost: LostBatch) -> int | None:
    """The one element that the loss must be laid to, if there is one."""
    if len(positions) > 1:
        return lost.position if _names_one(positions, lost) else None
    return positions[0]


def _injected_failure(suspect: int, lost: LostBatch) -> InjectedFailure:
    """For the operation that ran; for inference where that is not known."""
    if _names_one([suspect], lost):
        return InjectedFailure(lost.stage, lost.index, lost.error)
    return InjectedFailure(Stage.INFERENCE, 0, lost.error)


def _names_one(positions: Sequence[int], lost: LostBatch) -> bool:
    """Whether an operation of one of these ran; only pre- and postprocessing have elements of their own."""
    return lost.stage is not Stage.INFERENCE and lost.position in positions


def _split(positions: Sequence[int], count: int) -> list[_TriedPart]:
    """Cuts a group into so many parts, of which those that stand alone may be repeated."""
    bounds = [len(positions) * n // count for n in range(count + 1)]
    parts = [positions[start:stop] for start, stop in pairwise(bounds)]
    return [_TriedPart(part, repeatable=len(part) == 1) for part in parts]


def _recut(part: _TriedPart, group: _Suspects) -> list[_TriedPart]:
    """Parts of the size that went well, of one that is as large as a group that was too large."""
    size = len(part.positions)
    return [part] if size < len(group.positions) else _split(part.positions, math.ceil(size / group.part_size))
