"""Recovers from a failed call: repeats it, cuts the batch, or searches it for bad elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.core.errors import HostDiedError, PredictionCountError
from headrace.core.result import Caught
from headrace.failures.breaker import CALLS, HOSTS, OUTAGES, TIMEOUTS, CircuitBreaker
from headrace.failures.memory import free_memory, is_out_of_memory
from headrace.failures.retry import RetryBudget
from headrace.failures.search import NOTHING_KNOWN, FailureSearch, Overruns

ResultT = TypeVar("ResultT")


class Action(Enum):
    """What to do about a failed call."""

    AGAIN = auto()
    """Repeat it as it is."""
    IN_PARTS = auto()
    """Memory ran out: halve it, and run the rest of the batch in parts of that size."""
    SEARCH = auto()
    """Halve it until its bad elements stand alone."""
    PROBE = auto()
    """Try some of its elements alone; search the others only if one of them succeeds."""
    GIVE_UP = auto()
    """Fail all of its elements."""
    RAISE = auto()
    """Raise the error, which fails the bundle."""


Choose = Callable[[int, int, BaseException, int], Action]
"""(start, stop, error, failed) -> Action: decides about the elements from one index up to another, given their call's
error and how many tries of it have failed in a row. Before it returns, it waits or frees memory as the action needs."""

Probes = Callable[[int, BaseException], Iterable[int]]
"""(size, error) -> indices of the elements to try alone, of a batch of that size that raised that error."""


class PartResult(NamedTuple):
    """The result of consecutive elements of a batch."""

    start: int
    stop: int
    answer: Any
    """Their result; or a Caught, with which each of them fails."""
    tries: int
    """In how many calls the first of them took part."""


class RecoveryPolicy:
    """Chooses an action for each failure of one batch.

    A wrong number of predictions is a bug in the handler: nothing is tried. If memory ran out, a smaller part may
    succeed at once. A transient error is retried after a pause. Any other error is raised, unless it is ``caught``:
    then the batch is searched, or probed while everything has been failing, or given up if tries are billed.

    Args:
        caught: exceptions that become failures of elements.
        budget: decides what is retried, and waits.
        breaker: says whether everything has been failing lately.
        billed: whether each try costs money, so that nothing is tried again.
        free: frees memory.
    """

    def __init__(
        self,
        caught: type[BaseException] | tuple[type[BaseException], ...],
        budget: RetryBudget,
        breaker: CircuitBreaker,
        *,
        billed: bool = False,
        free: Callable[[], None] = free_memory,
    ) -> None:
        self._caught = caught
        self._budget = budget
        self._breaker = breaker
        self._billed = billed
        self._free = free

    def choose(self, start: int, stop: int, error: BaseException, failed: int) -> Action:
        """The action for elements ``start`` up to ``stop``, whose call has failed ``failed`` times, now with ``error``.

        Waits before AGAIN, except while the breaker is open, and frees memory before IN_PARTS.
        """
        is_caught = isinstance(error, self._caught)
        if _is_handlers(error):
            return Action.GIVE_UP if is_caught else Action.RAISE
        if is_caught and self._breaker.is_open and not self._billed:  # no pauses for every batch of an outage
            return Action.AGAIN if self._budget.allows_immediate_retry(error, failed) else Action.PROBE
        if not self._billed:
            if stop - start > 1 and is_out_of_memory(error):
                self._free()
                return Action.IN_PARTS
            if self._budget.allows_retry(error, failed):
                return Action.AGAIN
        if not is_caught:
            return Action.RAISE
        return Action.GIVE_UP if self._billed else Action.SEARCH

    def probes(self, size: int, error: BaseException) -> list[int]:
        """Indices of the elements of a failed batch to try alone; fewer if failures of this kind are expensive."""
        if isinstance(error, TimeoutError):
            return self._breaker.probes(size, TIMEOUTS)
        if isinstance(error, HostDiedError):
            return self._breaker.probes(size, HOSTS)
        return self._breaker.probes(size, OUTAGES if self._budget.is_retryable(error) else CALLS)


def _is_handlers(error: BaseException) -> bool:
    """Whether the error is a bug in the handler, not in its elements; a smaller batch might only hide it."""
    return isinstance(error, PredictionCountError)


def recover(
    size: int,
    failure: Caught,
    attempt: Callable[[int, int], ResultT | Caught],
    choose: Choose,
    probes: Probes,
    *,
    overruns: Overruns = NOTHING_KNOWN,
) -> Iterator[Sequence[PartResult]]:
    """Handles the failure of a batch, and those that follow, until each element has an answer.

    Args:
        size: number of elements in the batch, at least 1.
        failure: what the first try raised, with the whole batch.
        attempt: calls the model with the elements from one index up to another; returns a Caught if that raised.
        choose: decides what follows a failure. Within a search only AGAIN and RAISE count.
        probes: chooses the elements to try alone for PROBE.
        overruns: what the search needs for calls that overrun.

    Yields:
        Consecutive parts that make up the batch; each time all parts that result from one call and its search.

    Raises:
        BaseException: the error for which RAISE was chosen.
    """
    calls = _Calls(size, failure, attempt, choose)
    search = FailureSearch(lambda begin, end: calls.until_decided(begin, end)[0], _is_handlers, overruns)
    start, step = 0, size
    while start < size:
        stop = min(start + step, size)
        answer, action = calls.until_decided(start, stop)
        if action is Action.IN_PARTS:  # nothing is yielded yet: the loop starts again at the same element
            step = (stop - start) // 2
            continue
        parts: list[tuple[int, int, ResultT | Caught]] = [(start, stop, answer)]
        if isinstance(answer, Caught) and action is Action.SEARCH:
            parts = list(search.among(start, stop, answer))
        elif isinstance(answer, Caught) and action is Action.PROBE and stop - start > 1:
            parts = list(search.of_few(start, stop, answer, probes(stop - start, answer.error)))
        tries = calls.tries()
        yield [PartResult(*part, tries[part[0]]) for part in parts]
        start = stop


class _Calls(Generic[ResultT]):
    """Calls the model until the policy decides, and counts in how many calls each element took part.

    Args:
        size: number of elements in the batch.
        failure: the result of the first call.
        attempt: makes the other calls.
        choose: decides what follows a failure.
    """

    def __init__(
        self, size: int, failure: Caught, attempt: Callable[[int, int], ResultT | Caught], choose: Choose
    ) -> None:
        self._first: Caught | None = failure
        self._attempt = attempt
        self._choose = choose
        self._calls = [0] * (size + 1)
        """For each element, the difference to the element before it."""

    def until_decided(self, start: int, stop: int) -> tuple[ResultT | Caught, Action]:
        """Tries the elements until they have a result, or the policy wants something other than the same again."""
        failed = 0
        while True:
            self._calls[start] += 1
            self._calls[stop] -= 1
            answer = self._attempt(start, stop) if self._first is None else self._first
            self._first = None
            failed += 1
            if not isinstance(answer, Caught):
                return answer, Action.GIVE_UP
            action = self._choose(start, stop, answer.error, failed)
            if action is Action.RAISE:
                raise answer.error
            if action is not Action.AGAIN:
                return answer, action

    def tries(self) -> list[int]:
        """The number of calls of each element."""
        return list(accumulate(self._calls))
