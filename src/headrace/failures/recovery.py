"""Recovers from a failed call: repeats it, cuts the batch, or searches it for bad elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from headrace.core.errors import HostDiedError, PredictionCountError
from headrace.core.result import Caught
from headrace.failures.breaker import CALLS, HOSTS, OUTAGES, TIMEOUTS, CircuitBreaker
from headrace.failures.device import free_memory, is_out_of_memory
from headrace.failures.retry import RetryBudget
from headrace.failures.search import FailureSearch, Found, InjectedFailure, LostBatch

ResultT = TypeVar("ResultT")

_MARK = "overran_in_host"


class Action(Enum):
    """What to do about a failed call."""

    AGAIN = auto()
    IN_PARTS = auto()
    """Memory ran out: halve it, and run the rest of the batch in parts of that size."""
    SEARCH = auto()
    """Search it for its bad elements."""
    PROBE = auto()
    """Try some of its elements alone; search the others only if one of them succeeds."""
    GIVE_UP = auto()
    RAISE = auto()
    """Raise the error, which fails the bundle."""


Note: TypeAlias = Callable[[Sequence[int], BaseException, Action, bool], None]
"""(positions, error, action, is_searching): is told of each failed call, the first one included, before the action."""


class PartResult(NamedTuple):
    """The result of some elements of a batch."""

    positions: Sequence[int]
    answer: Any
    """Their result; or a Caught, with which each of them fails."""
    tries: int
    """In how many calls the first of them took part."""


class Recovery(Generic[ResultT]):
    """The recovery of one batch whose call raised.

    A wrong number of predictions is a bug in the handler: nothing is tried. If memory ran out, a smaller part may
    succeed at once. A transient error is retried after a pause. Any other error is raised, unless it is ``caught``:
    then the batch is searched, or probed while everything has been failing, or given up if tries are billed.

    Args:
        attempt: calls the model with the elements at these positions; returns a Caught if that raised.
        budget: decides what is retried, and waits.
        breaker: says whether everything has been failing lately, and learns what comes of this batch.
        caught: exceptions that become failures of elements.
        billed: whether each try costs money, so that nothing is tried again.
        parts: number of parts into which to cut a group of that size whose call overran in a host.
        too_large: called with elements that overran together, although each was answered afterwards.
    """

    def __init__(
        self,
        attempt: Callable[[Sequence[int]], ResultT | Caught],
        budget: RetryBudget,
        breaker: CircuitBreaker,
        *,
        caught: type[BaseException] | tuple[type[BaseException], ...],
        billed: bool = False,
        note: Note = lambda *_: None,
        parts: Callable[[int], int] = lambda count: count,
        too_large: Callable[[Sequence[int]], None] = lambda _: None,
        free: Callable[[], None] = free_memory,
    ) -> None:
        self._attempt = attempt
        self._budget = budget
        self._breaker = breaker
        self._caught = caught
        self._billed = billed
        self._note = note
        self._free = free
        self._parts = parts
        self._too_large = too_large
        self._tries: Counter[int] = Counter()

    def results(self, size: int, failure: Caught) -> Iterator[PartResult]:
        """Handles the failure of a batch of ``size`` elements, and those that follow, until each has an answer.

        Raises:
            BaseException: an error that is not caught.
        """
        search: FailureSearch[ResultT] = FailureSearch(  # not kept: as a cycle it would keep the model
            self._searched,
            forgives=False,  # who calls a model in a host has repeated the call
            gives_up_single=True,
            parts=self._parts,
            too_large=self._too_large,
            is_collective=_is_handlers,
        )
        start, step = 0, size
        answer: ResultT | Caught = failure
        self._tries.update(range(size))
        while True:
            positions = range(start, min(start + step, size))
            answer, action = self._decided(positions, answer)
            if action is Action.IN_PARTS:
                step = len(positions) // 2
            else:
                parts = list(self._settled(search, positions, answer, action))
                self._breaker.record(succeeded=any(not isinstance(part.answer, Caught) for part in parts))
                yield from parts
                start = positions.stop
                if start == size:
                    return
            answer = self._tried(range(start, min(start + step, size)))

    def _settled(
        self, search: FailureSearch[ResultT], positions: Sequence[int], answer: ResultT | Caught, action: Action
    ) -> Iterator[PartResult]:
        found: Found[ResultT] = iter([(positions, answer)])
        if isinstance(answer, Caught) and action is Action.SEARCH:
            found = search.among(positions, _as_lost(answer))
        elif isinstance(answer, Caught) and action is Action.PROBE and len(positions) > 1:
            found = search.probing(self._probes(len(positions), answer.error), positions, _as_lost(answer))
        for part, one in found:
            result = Caught.of(one.error) if isinstance(one, LostBatch) else one
            yield PartResult(part, result, self._tries[part[0]])

    def _searched(self, positions: Sequence[int], _: Mapping[int, InjectedFailure]) -> ResultT | Caught | LostBatch:
        answer = self._decided(positions, self._tried(positions), is_searching=True)[0]
        lost: ResultT | Caught | LostBatch = _as_lost(answer)
        return lost

    def _decided(
        self, positions: Sequence[int], answer: ResultT | Caught, *, is_searching: bool = False
    ) -> tuple[ResultT | Caught, Action]:
        """Repeats a call until it has a result, or something else is to be done about its failure."""
        failed = 0
        while isinstance(answer, Caught):
            failed += 1
            action = self._action(len(positions), answer.error, failed)
            self._note(positions, answer.error, action, is_searching)
            if action is Action.RAISE:
                raise answer.error
            if action is not Action.AGAIN:
                return answer, action
            answer = self._tried(positions)
        return answer, Action.GIVE_UP

    def _tried(self, positions: Sequence[int]) -> ResultT | Caught:
        self._tries.update(positions)
        answer = self._attempt(positions)
        if not isinstance(answer, Caught):
            self._breaker.record(succeeded=True)  # the model does answer: further attempts pay
        return answer

    def _action(self, size: int, error: BaseException, failed: int) -> Action:
        """The action for ``size`` elements, whose call has failed ``failed`` times, now with ``error``.

        Waits before AGAIN, except while the breaker is open, and frees memory before IN_PARTS.
        """
        is_caught = isinstance(error, self._caught)
        if _is_handlers(error):
            return Action.GIVE_UP if is_caught else Action.RAISE
        if is_caught and self._breaker.is_open and not self._billed:  # no pauses for every batch of an outage
            return Action.AGAIN if self._budget.allows_immediate_retry(error, failed) else Action.PROBE
        if not self._billed:
            if size > 1 and is_out_of_memory(error):
                self._free()
                return Action.IN_PARTS
            if self._budget.allows_retry(error, failed):
                return Action.AGAIN
        if not is_caught:
            return Action.RAISE
        return Action.GIVE_UP if self._billed else Action.SEARCH

    def _probes(self, size: int, error: BaseException) -> list[int]:
        """Indices of the elements of a failed batch to try alone; fewer if failures of this kind are expensive."""
        if isinstance(error, TimeoutError):
            return self._breaker.probes(size, TIMEOUTS)
        if isinstance(error, HostDiedError):
            return self._breaker.probes(size, HOSTS)
        return self._breaker.probes(size, OUTAGES if self._budget.is_retryable(error) else CALLS)


def overrun(text: str) -> TimeoutError:
    """The error to raise after a host was killed because a model call took too long."""
    error = TimeoutError(text)
    vars(error)[_MARK] = True
    return error


def is_overrun(error: BaseException) -> bool:
    """Whether ``overrun`` made the error: handlers may raise a TimeoutError of their own, which killed no host."""
    return isinstance(error, TimeoutError) and getattr(error, _MARK, False)


def _as_lost(answer: Any) -> Any:
    """An answer; a LostBatch in place of an error that cost a host."""
    if isinstance(answer, Caught) and (is_overrun(answer.error) or isinstance(answer.error, HostDiedError)):
        return LostBatch(answer.error, timed_out=is_overrun(answer.error))
    return answer


def _is_handlers(error: BaseException) -> bool:
    """Whether the error is a bug in the handler, not in its elements; a smaller batch might only hide it."""
    return isinstance(error, PredictionCountError)
