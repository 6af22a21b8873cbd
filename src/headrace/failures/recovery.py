"""What is tried for a batch whose call fails: smaller parts, the same again, a search for its bad elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from headrace.core.errors import HostDiedError, PredictionCountError
from headrace.core.result import Caught
from headrace.failures.breaker import CALLS, HOSTS, OUTAGES, TIMEOUTS, CircuitBreaker
from headrace.failures.memory import free_memory, is_out_of_memory
from headrace.failures.overruns import NOTHING_KNOWN, Overruns, Search
from headrace.failures.retry import RetryBudget

ResultT = TypeVar("ResultT")


class Action(Enum):
    """What is to be done about a call that has failed."""

    AGAIN = auto()
    """Repeat it as it is."""
    IN_PARTS = auto()
    """Cut it in two, and whatever follows in the batch likewise: there was too little memory."""
    SEARCH = auto()
    """Halve it until its bad elements stand alone."""
    PROBE = auto()
    """Try some of its elements alone, and search the rest only if one of them succeeds."""
    GIVE_UP = auto()
    """Let all of its elements fail."""
    RAISE = auto()
    """Raise the error, which ends it all."""


Choose = Callable[[int, int, BaseException, int], Action]
"""Decides about the elements from one place up to another, given what their call raised and how many tries of it have
failed in a row; and does what the decision needs first, as waiting or freeing."""

Probes = Callable[[int, BaseException], Iterable[int]]
"""Which elements of a batch of that size are to be tried alone, by their places, given what the batch raised."""


class PartResult(NamedTuple):
    """What has become of neighbours in a batch; where it is an exception, each of them is to fail with it."""

    start: int
    stop: int
    answer: Any
    """The result; or a Caught."""
    tries: int
    """How many calls the first of them was in."""


class RecoveryPolicy:
    """Chooses the rung for the failures of one batch.

    A wrong number of predictions is the handler's mistake, of which nothing is tried. Memory first: a smaller part may
    do at once. Then time: what passes by itself is tried again, after a pause. What is caught is searched, or probed
    where everything has been failing lately, unless tries are billed; what is not caught is raised.

    Args:
        caught: which exceptions are to become failures of elements.
        patience: says what is tried again.
        breaker: says whether everything has been failing lately.
        billed: whether each try costs somebody's money, so that nothing is tried again.
        free: makes room where memory is wanting.
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
        """See ``Choose``."""
        is_caught = isinstance(error, self._caught)
        if _is_handlers(error):
            return Action.GIVE_UP if is_caught else Action.RAISE
        if is_caught and self._breaker.is_open and not self._billed:  # nobody waits for each batch of an outage
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
        """See ``Probes``."""
        if isinstance(error, TimeoutError):
            return self._breaker.probes(size, TIMEOUTS)
        if isinstance(error, HostDiedError):
            return self._breaker.probes(size, HOSTS)
        return self._breaker.probes(size, OUTAGES if self._budget.may_pass(error) else CALLS)


def _is_handlers(error: BaseException) -> bool:
    """Whether it is the handler that is wrong, whatever its elements: in a smaller batch that might not show."""
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
    """Does what the failure of a batch asks for, and those that follow, until each element has an answer.

    Args:
        size: of the batch, at least 1.
        failure: of the first try, with the whole batch.
        attempt: calls the model with the elements from one place up to another; a Caught is what it raised.
        choose: decides what comes after a failure. Within a search only AGAIN and RAISE count.
        probes: says what is tried alone, where that is decided.
        overruns: what a search needs for calls that take too long.

    Yields:
        Parts in their order, which together are the batch: at once all that has come of one call and the search after
        it.
    """
    calls = [0] * (size + 1)
    """How many more there were with each element than with the one before it."""
    before = 0
    first: ResultT | Caught | None = failure

    def persist(start: int, stop: int) -> tuple[ResultT | Caught, Action]:
        nonlocal first
        failed = 0
        while True:
            calls[start] += 1
            calls[stop] -= 1
            answer, first = (attempt(start, stop) if first is None else first), None
            failed += 1
            if not isinstance(answer, Caught):
                return answer, Action.GIVE_UP
            action = choose(start, stop, answer.error, failed)
            if action is Action.RAISE:
                raise answer.error
            if action is not Action.AGAIN:
                return answer, action

    search = Search(lambda begin, end: persist(begin, end)[0], _is_handlers, overruns)
    start, step = 0, size
    while start < size:
        stop = min(start + step, size)
        answer, action = persist(start, stop)
        if action is Action.IN_PARTS:
            step = (stop - start) // 2
            continue
        parts: list[tuple[int, int, ResultT | Caught]] = [(start, stop, answer)]
        if isinstance(answer, Caught) and action is Action.SEARCH:
            parts = list(search.among(start, stop, answer))
        elif isinstance(answer, Caught) and action is Action.PROBE and stop - start > 1:
            parts = list(search.of_few(start, stop, answer, probes(stop - start, answer.error)))
        tries = list(accumulate(calls[start:stop], initial=before))[1:]
        yield [PartResult(*part, tries[part[0] - start]) for part in parts]
        start, before = stop, tries[-1]
