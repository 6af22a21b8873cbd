"""Searches batches whose calls may overrun the time limit: each further overrun costs the limit again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.core.result import Caught, Stage
from headrace.failures.bisect import bisect
from headrace.failures.isolate_fatal import MAX_TIMEOUTS, InjectedFailure, LostBatch, isolate_fatal
from headrace.failures.probe import probe

ResultT = TypeVar("ResultT")

_MARK = "overran_in_host"


class Overruns(NamedTuple):
    """What a search for elements that hang needs from its caller."""

    parts: Callable[[int], int] = lambda count: count
    """Number of parts into which to cut a group of that many elements that overran."""
    too_large: Callable[[int, int], None] = lambda _start, _stop: None
    """Called with the bounds of elements that overran together, although each was answered afterwards."""


NOTHING_KNOWN = Overruns()


def overrun(text: str) -> TimeoutError:
    """The error to raise after a host was killed because a model call took too long."""
    error = TimeoutError(text)
    vars(error)[_MARK] = True
    return error


def is_overrun(error: BaseException) -> bool:
    """Whether ``overrun`` made the error: handlers may raise a TimeoutError of their own, which killed no host."""
    return isinstance(error, TimeoutError) and getattr(error, _MARK, False)


class OverrunSearch(Generic[ResultT]):
    """Searches one batch: bisects elements that raise, and hands those that overrun together to ``isolate_fatal``.

    Once more than ``MAX_TIMEOUTS`` elements have overrun alone, everything unanswered fails with the last one's
    error.

    Args:
        attempt: runs the elements from one index up to another; returns their result, or the exception they raised.
        is_collective: whether an exception is no single element's fault, so that its part is not halved.
        overruns: how to cut elements that overran, and what to call if there were too many.
    """

    def __init__(
        self,
        attempt: Callable[[int, int], ResultT | Caught],
        is_collective: Callable[[BaseException], bool],
        overruns: Overruns,
    ) -> None:
        self._attempt = attempt
        self._is_collective = is_collective
        self._overruns = overruns
        self._alone: list[Caught] = []
        """The exceptions of elements that overran alone."""

    def among(self, start: int, stop: int, caught: Caught) -> Iterator[tuple[int, int, ResultT | Caught]]:
        """Finds the bad elements from ``start`` up to ``stop``, which raised ``caught``; yields as ``bisect`` does."""
        for begin, end, answer in bisect(start, stop, self._try, caught, self._ends_halving):
            if isinstance(answer, Caught) and is_overrun(answer.error) and end - begin > 1:
                yield from self._among_slow(begin, end, answer)
            else:
                yield begin, end, answer

    def of_few(
        self, start: int, stop: int, caught: Caught, places: Iterable[int]
    ) -> Iterator[tuple[int, int, ResultT | Caught]]:
        """Tries the elements at ``places`` alone, and searches the others if one succeeds; yields as ``probe`` does."""
        return probe(start, stop, places, self._attempt, caught, search=self.among)

    def _among_slow(self, start: int, stop: int, caught: Caught) -> Iterator[tuple[int, int, ResultT | Caught]]:
        tried: Iterator[tuple[Sequence[int], ResultT | Caught | LostBatch]] = isolate_fatal(
            range(start, stop),
            _lost(caught),
            self._try_places,
            gives_up_single=True,
            parts=self._overruns.parts,
            too_large=lambda places: self._overruns.too_large(places[0], places[-1] + 1),
        )
        for places, answer in tried:
            begin, end = places[0], places[-1] + 1
            if isinstance(answer, LostBatch):
                yield begin, end, Caught.of(answer.error)
            elif isinstance(answer, Caught):
                yield from self.among(begin, end, answer)
            else:
                yield begin, end, answer

    def _try_places(self, places: Sequence[int], _: Mapping[int, InjectedFailure]) -> ResultT | Caught | LostBatch:
        """Tries elements, which are neighbours: a search for overruns never takes one out of the middle of a group."""
        answer = self._try(places[0], places[-1] + 1)
        return _lost(answer) if isinstance(answer, Caught) and is_overrun(answer.error) else answer

    def _try(self, start: int, stop: int) -> ResultT | Caught:
        if len(self._alone) > MAX_TIMEOUTS:
            return self._alone[-1]
        answer = self._attempt(start, stop)
        if stop - start == 1 and isinstance(answer, Caught) and is_overrun(answer.error):
            self._alone.append(answer)
        return answer

    def _ends_halving(self, error: BaseException) -> bool:
        return is_overrun(error) or self._is_collective(error)


def _lost(caught: Caught) -> LostBatch:
    return LostBatch(caught.error, timed_out=True, stage=Stage.INFERENCE)
