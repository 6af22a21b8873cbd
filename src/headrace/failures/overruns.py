"""Batches whose call took too long, where that is an exception: each further one costs the time limit again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.core.result import Caught, Stage
from headrace.failures.bisect import bisect
from headrace.failures.isolate_fatal import TIMEOUTS_BORNE, InjectedFailure, LostBatch, isolate_fatal
from headrace.failures.probe import probe

ResultT = TypeVar("ResultT")

_MARK = "overran_in_host"


class Overruns(NamedTuple):
    """What a search for the elements that hang needs to know, and tells."""

    parts: Callable[[int], int] = lambda count: count
    """See ``parts_after_timeout``."""
    too_large: Callable[[int, int], None] = lambda _start, _stop: None
    """Is told of elements, from one place up to another, that took too long together, though each had an answer."""


NOTHING_KNOWN = Overruns()


def overrun(text: str) -> TimeoutError:
    """What to raise where a host was killed since a call of the model took too long."""
    error = TimeoutError(text)
    vars(error)[_MARK] = True
    return error


def is_overrun(error: BaseException) -> bool:
    """Whether it was made by ``overrun``: other calls of the user's have time limits, too, and no host to be killed."""
    return isinstance(error, TimeoutError) and getattr(error, _MARK, False)


class Search(Generic[ResultT]):
    """As ``bisect``, for one batch; but elements that take too long together are tried as ``isolate_fatal`` says.

    When more elements than ``TIMEOUTS_BORNE`` have overrun alone, nothing else is tried: what is unanswered fails with
    the error of the last one.

    Args:
        attempt: see ``bisect``, as for ``is_of_all``.
        is_of_all: see there.
        overruns: what is known of calls that take too long.
    """

    def __init__(
        self,
        attempt: Callable[[int, int], ResultT | Caught],
        is_of_all: Callable[[BaseException], bool],
        overruns: Overruns,
    ) -> None:
        self._attempt = attempt
        self._is_of_all = is_of_all
        self._overruns = overruns
        self._alone: list[Caught] = []
        """What those have raised that overran alone."""

    def among(self, start: int, stop: int, caught: Caught) -> Iterator[tuple[int, int, ResultT | Caught]]:
        """See ``bisect``."""
        for begin, end, answer in bisect(start, stop, self._try, caught, self._ends_halving):
            if isinstance(answer, Caught) and is_overrun(answer.error) and end - begin > 1:
                yield from self._among_slow(begin, end, answer)
            else:
                yield begin, end, answer

    def of_few(
        self, start: int, stop: int, caught: Caught, places: Iterable[int]
    ) -> Iterator[tuple[int, int, ResultT | Caught]]:
        """See ``probe``."""
        return probe(start, stop, places, self._attempt, caught, search=self.among)

    def _among_slow(self, start: int, stop: int, caught: Caught) -> Iterator[tuple[int, int, ResultT | Caught]]:
        tried: Iterator[tuple[Sequence[int], ResultT | Caught | LostBatch]] = isolate_fatal(
            range(start, stop),
            _lost(caught),
            self._try_places,
            settles_alone=True,
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
        """Of neighbours: of those that overrun nobody is picked out."""
        answer = self._try(places[0], places[-1] + 1)
        return _lost(answer) if isinstance(answer, Caught) and is_overrun(answer.error) else answer

    def _try(self, start: int, stop: int) -> ResultT | Caught:
        if len(self._alone) > TIMEOUTS_BORNE:
            return self._alone[-1]
        answer = self._attempt(start, stop)
        if stop - start == 1 and isinstance(answer, Caught) and is_overrun(answer.error):
            self._alone.append(answer)
        return answer

    def _ends_halving(self, error: BaseException) -> bool:
        return is_overrun(error) or self._is_of_all(error)


def _lost(caught: Caught) -> LostBatch:
    return LostBatch(caught.error, timed_out=True, stage=Stage.INFERENCE)
