"""The search for what is bad in a batch: elements whose calls raise, and those that kill or hang their host.

A part that *raises* is halved until its bad elements stand alone. If memory ran out, no later part is larger than its
halves.

A *death* may have an outside cause: the batch is repeated once as it is, unless memory ran out. If the host dies
again in inference, the batch is halved, down to single elements. A single element is repeated once, since the deaths
of its group prove nothing about it, and is then fatal. If hosts die twice in one element's pre- or postprocessing, it
is fatal for that operation, and the others stay together.

A *timeout* is expensive: a group that overruns in inference is cut into parts; an element that overruns alone, or in
its own operation, is fatal at once. If a group that overran has no such element, it was too large: no later part is
larger than its parts.

Fatal elements are tried once more with their failure injected, so that the host makes the failure record from the
right value. An element that is lost even so is given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

from headrace.core.errors import PredictionCountError
from headrace.core.result import Caught, Stage
from headrace.failures.breaker import HOSTS, TIMEOUTS, CircuitBreaker, Probing
from headrace.failures.device import is_out_of_memory

ResultT = TypeVar("ResultT")

MAX_TIMEOUTS = 3
"""How many elements of a batch may time out after its first timeout; one more fails everything unanswered.

Each costs the whole time limit, so a model that hangs on everything must not cost one for each element.
"""
LETHAL_IN_A_ROW = 16
"""After this many lethal elements, with no answer to another in between, some of the rest are tried first."""
LETHAL_PROBES = 3
"""How many, spread over the rest: bad elements are often neighbours. If these are lethal, too, everything unanswered
fails: a model that dies of everything must not cost two hosts for each element."""
_FEW = 32
"""Up to this many elements are tried one by one after a timeout; of more there are as many parts as elements in each,
since parts cost one more timeout, and single elements a call each."""


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


class FailureSearch(Generic[ResultT]):
    """Tries a batch that failed again, until its bad elements are known and the others answered.

    n elements cost at most 6n attempts, whatever attempts return; one that raises at most 2 log2 n, one that is lethal
    in inference 2 ceil(log2 n) + 3.

    Args:
        breaker: is open while everything has been failing; attempts that succeed, or whoever takes answers, close it.
        forgives: whether a death may have had an outside cause, and the same is tried once more.
        gives_up_single: whether a single element that is fatal in inference is given up at once. Right if there is no
            preprocessing: then the caller already has the value that inference got.
        too_large: called with elements that timed out together, although each was answered afterwards.
    """

    def __init__(
        self,
        attempt: Attempt[ResultT],
        *,
        breaker: CircuitBreaker | None = None,
        forgives: bool = True,
        gives_up_single: bool = False,
        too_large: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self._attempt = attempt
        self._breaker = breaker
        self._forgives = forgives
        self._repeats_group = forgives
        """Whether the next group whose host dies is tried once more."""
        self._gives_up_single = gives_up_single
        self._too_large = too_large
        self._left: dict[int, None] = {}
        """The elements that are not settled."""
        self._most = math.inf
        """How many are tried together."""
        self._injected: dict[int, InjectedFailure] = {}
        self._suspected: set[int] = set()
        """Elements to which a death was traced before."""
        self._overran = 0
        """How many elements have timed out by themselves, and one more if a group has."""
        self._lethal_in_a_row = 0
        self._raising = 0
        """How many parts failed with what they raised."""

    def among(
        self, positions: Sequence[int], first: Caught | LostBatch | None = None, cost: Probing = HOSTS
    ) -> Found[ResultT]:
        """Finds the bad elements among those at these positions, which were tried together and failed, if at all.

        While the breaker is open, some elements are tried alone, and the others only if one of them closes it; else
        they fail with the error of all together. A caller that closes it does so before it takes the next part.

        Args:
            positions: distinct.
            first: how they failed.
            cost: of trying one alone, unless it times out.

        Yields:
            (part, answer) as they come; the parts make up ``positions``.
        """
        self._left = dict.fromkeys(positions)
        if first is not None and len(positions) > 1 and self._breaker is not None and self._breaker.is_open:
            is_late = first.timed_out if isinstance(first, LostBatch) else isinstance(first.error, TimeoutError)
            probes = [positions[place] for place in self._breaker.probes(len(positions), TIMEOUTS if is_late else cost)]
            yield from self._probed(self._breaker, probes, first)
            first = None
        yield from self._tried(positions, first)

    def _probed(self, breaker: CircuitBreaker, probes: Iterable[int], first: Caught | LostBatch) -> Found[ResultT]:
        for place in probes:
            answer = self._attempt([place], {})
            if not isinstance(answer, LostBatch) or answer.timed_out:  # a death may have an outside cause
                yield self._settled([place]), answer
            if not breaker.is_open:
                return
        if self._left:
            yield self._settled(list(self._left)), first

    def _tried(self, positions: Sequence[int], answer: ResultT | Caught | LostBatch | None = None) -> Found[ResultT]:
        """Tries these elements until each is settled; the first answer may be known."""
        while part := [place for place in positions if place in self._left]:
            if len(part) > self._most:
                yield from self._in_parts(part, math.ceil(len(part) / self._most))
                return
            if answer is None:
                injected = {place: self._injected[place] for place in part if place in self._injected}
                answer = self._attempt(part, injected)
            if isinstance(answer, LostBatch):
                yield from self._after_loss(part, answer)
            elif isinstance(answer, Caught) and len(part) > 1 and not isinstance(answer.error, PredictionCountError):
                yield from self._halved(part, answer)
            else:
                if any(place not in self._injected for place in part):
                    self._lethal_in_a_row = 0  # an answer about fatal elements only proves nothing
                self._raising += isinstance(answer, Caught)
                yield self._settled(part), answer
            answer = None

    def _halved(self, part: Sequence[int], raised: Caught) -> Found[ResultT]:
        """Tries the halves of what raised: if none of the first failed, the second would raise again."""
        if is_out_of_memory(raised.error):
            self._most = math.ceil(len(part) / 2)
        middle, raising = len(part) // 2, self._raising
        yield from self._tried(part[:middle])
        is_known = self._raising == raising and len(part) > middle + 1 and not is_out_of_memory(raised.error)
        yield from self._tried(part[middle:], raised if is_known else None)

    def _in_parts(self, positions: Sequence[int], count: int) -> Found[ResultT]:
        bounds = [len(positions) * n // count for n in range(count + 1)]
        for start, stop in pairwise(bounds):
            yield from self._tried(positions[start:stop])

    def _settled(self, positions: Sequence[int]) -> Sequence[int]:
        for place in positions:
            del self._left[place]
        return positions

    def _after_loss(self, part: Sequence[int], lost: LostBatch) -> Found[ResultT]:
        """Does what has to be done before what is left of a part is tried again."""
        is_own = lost.stage is not Stage.INFERENCE and lost.position in part
        if is_own or len(part) == 1:
            operation = (lost.stage, lost.index) if is_own else (Stage.INFERENCE, 0)
            suspect = lost.position if is_own and lost.position is not None else part[0]
            yield from self._blamed(suspect, lost, InjectedFailure(*operation, lost.error))
        elif lost.timed_out:
            yield from self._after_timeout(part)
        elif self._repeats_group and not lost.too_large:  # a group that ran out of memory would do so again
            self._repeats_group = False
        else:
            yield from self._in_parts(part, 2)

    def _after_timeout(self, group: Sequence[int]) -> Found[ResultT]:
        """Cuts a group; if then no element has timed out by itself, such groups are too large."""
        self._overran = before = self._overran or 1
        count = len(group) if len(group) <= _FEW else math.ceil(math.sqrt(len(group)))
        yield from self._in_parts(group, count)
        if self._overran == before:
            self._too_large(group)
            self._most = min(self._most, math.ceil(len(group) / count))

    def _blamed(self, suspect: int, lost: LostBatch, failure: InjectedFailure) -> Found[ResultT]:
        """Notes that an element alone can have caused a loss; ends the search after too many of these."""
        if self._forgives and not lost.timed_out and suspect not in self._suspected:
            self._suspected.add(suspect)
            return
        self._overran += lost.timed_out
        self._lethal_in_a_row += not lost.timed_out
        if suspect in self._injected or (self._gives_up_single and failure.stage is Stage.INFERENCE):
            yield self._settled([suspect]), lost
        else:
            self._injected[suspect] = failure
        rest = [place for place in self._left if place not in self._injected]
        if self._overran > 1 + MAX_TIMEOUTS or self._lethal_in_a_row >= LETHAL_IN_A_ROW + LETHAL_PROBES:
            if self._left:
                yield self._settled(list(self._left)), lost
        elif rest and self._lethal_in_a_row == LETHAL_IN_A_ROW:
            for number in range(LETHAL_PROBES):
                yield from self._tried([rest[(2 * number + 1) * len(rest) // (2 * LETHAL_PROBES)]])
