"""Recovers from a failed call: repeats it, or searches the batch for bad elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from headrace.core.errors import HostDiedError, PredictionCountError
from headrace.core.result import Caught
from headrace.failures.breaker import CALLS, HOSTS, OUTAGES, CircuitBreaker
from headrace.failures.device import free_memory, is_out_of_memory
from headrace.failures.retry import RetryBudget
from headrace.failures.search import FailureSearch, Found, LostBatch

ResultT = TypeVar("ResultT")

HOST_TIMED_OUT = "host_timed_out"
"""The attribute of an error whose call cost a host: whether that was killed because the call took too long."""
Note: TypeAlias = Callable[[Sequence[int], BaseException], None]
"""Is told of a call that failed: (positions, error)."""


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
        on_retry: is told of a call before it is repeated.
        on_failure: is told of the batch, and of a call whose error is raised.
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
        on_retry: Note = lambda *_: None,
        on_failure: Note = lambda *_: None,
        too_large: Callable[[Sequence[int]], None] = lambda _: None,
        free: Callable[[], None] = free_memory,
    ) -> None:
        self._attempt = attempt
        self._budget = budget
        self._breaker = breaker
        self._caught = caught
        self._billed = billed
        self._on_retry = on_retry
        self._on_failure = on_failure
        self._too_large = too_large
        self._free = free
        self._tries: Counter[int] = Counter()

    def results(self, size: int, failure: Caught) -> list[PartResult]:
        """Handles the failure of a batch of ``size`` elements, and those that follow, until each has an answer.

        Raises:
            BaseException: an error that is not caught.
        """
        positions = range(size)
        self._tries.update(positions)
        answer = self._insisted(positions, failure)
        found: Found[ResultT] = iter([(positions, answer)])
        if isinstance(answer, Caught):
            self._on_failure(positions, answer.error)
            if not self._billed and not isinstance(answer.error, PredictionCountError):
                search: FailureSearch[ResultT] = FailureSearch(  # not kept: as a cycle it would keep the model
                    lambda part, _: _as_lost(self._insisted(part, self._tried(part))),
                    breaker=self._breaker if isinstance(answer.error, self._caught) else None,
                    forgives=False,  # who calls a model in a host has repeated the call
                    gives_up_single=True,
                    too_large=self._too_large,
                )
                cost = OUTAGES if self._budget.is_retryable(answer.error) else CALLS
                cost = HOSTS if isinstance(answer.error, HostDiedError) else cost
                found = search.among(positions, _as_lost(answer), cost)
        parts = [
            PartResult(part, Caught.of(one.error) if isinstance(one, LostBatch) else one, self._tries[part[0]])
            for part, one in found
        ]
        self._breaker.record(succeeded=any(not isinstance(part.answer, Caught) for part in parts))
        return parts

    def _insisted(self, positions: Sequence[int], answer: ResultT | Caught) -> ResultT | Caught:
        """Repeats a call while that may help, and returns the last answer; raises an error that nothing helps."""
        failed = 0
        while isinstance(answer, Caught):
            error, failed = answer.error, failed + 1
            is_too_large = len(positions) > 1 and not self._billed and is_out_of_memory(error)
            if self._may_pass(error, failed, is_too_large=is_too_large):
                self._on_retry(positions, error)
                answer = self._tried(positions)
            elif is_too_large or isinstance(error, self._caught):
                if is_too_large:
                    self._free()
                break
            else:
                self._on_failure(positions, error)
                raise error
        return answer

    def _tried(self, positions: Sequence[int]) -> ResultT | Caught:
        self._tries.update(positions)
        answer = self._attempt(positions)
        if not isinstance(answer, Caught):
            self._breaker.record(succeeded=True)  # the model does answer: further attempts pay
        return answer

    def _may_pass(self, error: BaseException, failed: int, *, is_too_large: bool) -> bool:
        """Whether a call that has failed so often is to be repeated; waits before, except while the breaker is open."""
        if self._billed or isinstance(error, PredictionCountError):
            return False
        if self._breaker.is_open and isinstance(error, self._caught):  # no pauses for every batch of an outage
            return self._budget.allows_immediate_retry(error, failed)
        return not is_too_large and self._budget.allows_retry(error, failed)


def _as_lost(answer: Any) -> Any:
    """An answer; a LostBatch in place of an error that cost a host, unless fewer elements may fit into memory."""
    if not isinstance(answer, Caught) or is_out_of_memory(answer.error):
        return answer
    timed_out = getattr(answer.error, HOST_TIMED_OUT, None)
    return answer if timed_out is None else LostBatch(answer.error, timed_out)
