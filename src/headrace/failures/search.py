"""The search for what is bad in a batch: elements whose calls raise, and those that kill or hang their host.

A part that *raises* is halved until its bad elements stand alone. If its first half is answered, the second one is to
blame, and halved without a try.

A *death* may have an outside cause: the batch is repeated once as it is, unless memory ran out. If the host dies
again in inference, the batch is halved; a half whose host dies is halved at once, down to single elements. A single
element is repeated once, since the deaths of its group prove nothing about it, and is then fatal. If hosts die
twice in one element's pre- or postprocessing, it is fatal for that operation, and the others stay together.

A *timeout* is expensive: a group that overruns in inference is cut into ``parts``; an element that overruns
alone, or in its own operation, is fatal at once. If a group that overran has no such element, it was too large:
other groups of its size are then cut into parts of the size that succeeded.

Fatal elements are tried once more with their failure injected, so that the host makes the failure record from the
right value. An element that is lost even so is given up, after a death only the second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from headrace.core.result import Caught, Stage

ResultT = TypeVar("ResultT")

MAX_TIMEOUTS = 3
"""How many elements of a batch may time out after its first timeout; one more fails everything unanswered.

Each costs the whole time limit, so a model that hangs on everything must not cost one for each element.
"""
LETHAL_IN_A_ROW = 16
"""After this many lethal elements, with no answer to another in between, everything unanswered fails, unless a probe
survives: a model that dies of everything must not cost two hosts for each element."""
LETHAL_PROBES = 3
"""How many elements, spread over the rest, are tried alone before that: bad elements are often neighbours."""
_FEW = 32
"""Up to this many elements are tried one by one after a timeout, however long that takes."""


@dataclass(frozen=True)
class LostBatch:
    """An attempt without an answer, because its host hung or died."""

    error: BaseException
    """The error of those elements that are not tried again."""
    timed_out: bool
    """Whether the host was killed because an operation overran; otherwise it died."""
    stage: Stage = Stage.INFERENCE
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


Attempt: TypeAlias = Callable[[Sequence[int], Mapping[int, InjectedFailure]], ResultT | Caught | LostBatch]
"""Runs the elements at these positions together, in a new host if the last was lost: their answer, what they raised, or
how the host was lost. Those with an injected failure fail as it says."""
Found: TypeAlias = Iterator[tuple[Sequence[int], ResultT | Caught | LostBatch]]
"""Parts with their answers. If that is a Caught or a LostBatch, all elements of the part fail with its error."""


class _Tried(NamedTuple):
    """Elements that are tried together."""

    positions: Sequence[int]
    repeats: bool
    """Whether it is tried once more after its next death, which may have an outside cause."""
    acquits: bool = False
    """Whether it is the first half of a part that raised: an answer to it means that the next part is to blame."""


class _Group(NamedTuple):
    """Elements that timed out together, below the parts into which they were cut."""

    positions: Sequence[int]
    part_size: int
    overran: int
    """How many elements had timed out by themselves before."""


class FailureSearch(Generic[ResultT]):
    """Tries a batch that failed again, until its bad elements are known and the others answered.

    n elements cost at most 6n attempts, whatever attempts return; one that raises at most 2 log2 n, one that is lethal
    in inference 2 ceil(log2 n) + 3.

    Args:
        forgives: whether a death may have had an outside cause, and the same is tried once more.
        gives_up_single: whether a single element that is fatal in inference is given up at once. Right if there is no
            preprocessing: then the caller already has the value that inference got.
        parts: number of parts into which to cut a group of that size whose inference timed out.
        too_large: called with elements that timed out together, although each was answered afterwards.
        is_collective: whether an exception is no single element's fault, so that its part is not halved.
    """

    def __init__(
        self,
        attempt: Attempt[ResultT],
        *,
        forgives: bool = True,
        gives_up_single: bool = False,
        parts: Callable[[int], int] = lambda count: count,
        too_large: Callable[[Sequence[int]], None] = lambda _: None,
        is_collective: Callable[[BaseException], bool] = lambda _: False,
    ) -> None:
        self._attempt = attempt
        self._forgives = forgives
        self._gives_up_single = gives_up_single
        self._parts = parts
        self._too_large = too_large
        self._is_collective = is_collective
        self._waiting: list[_Tried | _Group] = []
        """A stack, so that the parts of a group are settled before the next group."""
        self._injected: dict[int, InjectedFailure] = {}
        self._overran = 0
        """How many elements have timed out by themselves."""
        self._group_overran = False
        self._suspected: set[int] = set()
        """Elements to which a loss was traced before."""
        self._lost_despite_injection: set[int] = set()
        self._lethal_in_a_row: set[int] = set()

    def among(self, positions: Sequence[int], first: Caught | LostBatch) -> Found[ResultT]:
        """Finds the bad elements among those at distinct positions, which were tried together and failed.

        Yields:
            (part, answer) as they come; the parts make up ``positions``.
        """
        answer: ResultT | Caught | LostBatch | None = first
        self._waiting = [_Tried(positions, self._forgives)]
        while self._waiting:
            part = self._waiting.pop()
            if isinstance(part, _Group):
                self._end(part)
                continue
            if answer is None:
                injected = {place: self._injected[place] for place in part.positions if place in self._injected}
                answer = self._attempt(part.positions, injected)
            if isinstance(answer, LostBatch):
                yield from self._after_loss(part, answer)
            elif isinstance(answer, Caught) and len(part.positions) > 1 and not self._is_collective(answer.error):
                self._halve(part.positions)
            else:
                if any(place not in self._injected for place in part.positions):
                    self._lethal_in_a_row.clear()  # an answer about fatal elements only proves nothing
                yield part.positions, answer
                if part.acquits and not isinstance(answer, Caught) and len(self._waiting[-1].positions) > 1:
                    self._halve(self._waiting.pop().positions)
            answer = None

    def _halve(self, positions: Sequence[int]) -> None:
        first, second = _split(positions, 2)
        self._waiting += second, first._replace(acquits=True)

    def probing(
        self,
        places: Iterable[int],
        positions: Sequence[int],
        first: Caught | LostBatch,
        is_hopeless: Callable[[Any], bool] = lambda answer: isinstance(answer, Caught | LostBatch),
    ) -> Found[ResultT]:
        """While everything has been failing: tries some elements alone, and the others only if that gives hope.

        ``places`` are indices into ``positions``. Without hope the other elements fail with the error of the first
        failure, that of all together. ``is_hopeless`` is asked once the caller has the answer to a single element.
        """
        others, is_dead = yield from self._probe(places, positions, is_hopeless)
        if not others:
            return
        answer = first if is_dead else self._attempt(others, {})
        if answer is not first and isinstance(answer, Caught | LostBatch):
            yield from self.among(others, answer)
        else:
            yield others, answer

    def _probe(
        self, places: Iterable[int], positions: Sequence[int], is_hopeless: Callable[[Any], bool]
    ) -> Generator[tuple[Sequence[int], ResultT | Caught | LostBatch], None, tuple[list[int], bool]]:
        """Tries elements alone until one gives hope; returns the others, and whether it is still hopeless.

        With hope, elements whose host died are tried once more, since the death may have had an outside cause.
        """
        others = list(positions)
        died: list[tuple[Sequence[int], LostBatch]] = []
        is_dead = True
        for place in places:
            alone = [positions[place]]
            others.remove(positions[place])
            answer = self._attempt(alone, {})
            if isinstance(answer, LostBatch) and not answer.timed_out and self._forgives:
                died.append((alone, answer))
            else:
                yield alone, answer
            is_dead = is_hopeless(answer)
            if not is_dead:
                break
        yield from ((alone, lost if is_dead else self._attempt(alone, {})) for alone, lost in died)
        return others, is_dead

    def _after_loss(self, part: _Tried, lost: LostBatch) -> Found[ResultT]:
        """Decides what to try next; ends the search after too many timeouts, or deaths in a row."""
        given_up, again = self._judged(part, lost)
        is_late = self._overran + self._group_overran > 1 + MAX_TIMEOUTS
        if not is_late and len(self._lethal_in_a_row) < LETHAL_IN_A_ROW:
            if lost.timed_out and len(again) > 1:
                self._waiting.append(_Group(part.positions, len(again[0].positions), self._overran))
            self._waiting += reversed(again)
            if given_up:
                yield given_up, lost
            return
        parts = [part, *(one for one in reversed(self._waiting) if isinstance(one, _Tried))]
        left = [place for one in parts for place in one.positions]
        self._waiting = []
        known = set(left) if is_late else {*given_up, *self._injected}
        yield [place for place in left if place in known], lost
        rest = [place for place in left if place not in known]
        if rest:
            yield from self._probe_rest(rest, lost)

    def _probe_rest(self, rest: Sequence[int], lost: LostBatch) -> Found[ResultT]:
        """After too many deaths in a row: gives up the rest, unless an element from elsewhere in it survives."""
        probes = sorted({(2 * number + 1) * len(rest) // (2 * LETHAL_PROBES) for number in range(LETHAL_PROBES)})
        others, is_dead = yield from self._probe(probes, rest, lambda answer: isinstance(answer, LostBatch))
        if not is_dead and others:
            self._lethal_in_a_row.clear()
            self._waiting = [_Tried(others, self._forgives)]
        elif others:
            yield others, lost

    def _judged(self, part: _Tried, lost: LostBatch) -> tuple[Sequence[int], list[_Tried]]:
        """The elements that are given up after a loss, and the parts to try next."""
        suspect = _suspect(part.positions, lost)
        if suspect is not None and suspect in self._injected:  # lost although its failure was injected
            if lost.timed_out or suspect in self._lost_despite_injection:
                return self._give_up(suspect, part, lost)
            self._lost_despite_injection.add(suspect)
            return (), [part]
        is_first_suspicion = len(part.positions) > 1 and suspect is not None and suspect not in self._suspected
        if suspect is not None:
            self._suspected.add(suspect)
        would_help = len(part.positions) == 1 or not lost.too_large  # a group that ran out of memory would do so again
        is_forgiven = self._forgives and (part.repeats or is_first_suspicion) and would_help
        if is_forgiven and not lost.timed_out:
            return (), [part._replace(repeats=False)]
        if suspect is None:
            self._group_overran |= lost.timed_out
            return (), _split(part.positions, self._parts(len(part.positions)) if lost.timed_out else 2)
        injected = InjectedFailure(Stage.INFERENCE, 0, lost.error)
        if _is_own(lost, [suspect]):
            injected = InjectedFailure(lost.stage, lost.index, lost.error)
        if self._gives_up_single and injected.stage is Stage.INFERENCE:  # so it was tried alone
            return self._give_up(suspect, part, lost)
        self._injected[suspect] = injected
        self._count(suspect, lost)
        return (), [part]

    def _give_up(self, suspect: int, part: _Tried, lost: LostBatch) -> tuple[Sequence[int], list[_Tried]]:
        """Gives the suspect up and tries the rest of its part next."""
        self._count(suspect, lost)
        others = [place for place in part.positions if place != suspect]
        return (suspect,), [_Tried(others, part.repeats or len(others) == 1)] if others else []

    def _count(self, suspect: int, lost: LostBatch) -> None:
        self._overran += lost.timed_out
        if not lost.timed_out:
            self._lethal_in_a_row.add(suspect)

    def _end(self, group: _Group) -> None:
        """All of a group is settled: if no element timed out by itself, such groups are too large."""
        if group.overran < self._overran:
            return
        self._too_large(group.positions)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            is_too_large = isinstance(one, _Tried) and len(one.positions) >= len(group.positions)
            count = math.ceil(len(one.positions) / group.part_size)
            self._waiting += reversed(_split(one.positions, count)) if is_too_large else [one]


def parts_after_timeout(count: int, call_secs: float, timeout_secs: float) -> int:
    """Number of parts into which to cut a group whose inference timed out.

    One by one costs a call for each element; parts cost one more timeout if an element hangs. So elements go one by
    one if all those calls, of at least ``call_secs``, take no longer than a timeout; else there are about as many parts
    as elements in each.
    """
    is_quick = count <= _FEW or count * call_secs <= timeout_secs
    return count if is_quick else math.ceil(math.sqrt(count))


def _suspect(positions: Sequence[int], lost: LostBatch) -> int | None:
    """The element that alone can have caused the loss, if there is one."""
    if len(positions) > 1:
        return lost.position if _is_own(lost, positions) else None
    return positions[0]


def _is_own(lost: LostBatch, positions: Sequence[int]) -> bool:
    """Whether the pre- or postprocessing of one of these elements ran; inference belongs to no single element."""
    return lost.stage is not Stage.INFERENCE and lost.position in positions


def _split(positions: Sequence[int], count: int) -> list[_Tried]:
    """Cuts a group into ``count`` parts; single elements may be repeated once."""
    bounds = [len(positions) * n // count for n in range(count + 1)]
    parts = [positions[start:stop] for start, stop in pairwise(bounds)]
    return [_Tried(part, repeats=len(part) == 1) for part in parts]
