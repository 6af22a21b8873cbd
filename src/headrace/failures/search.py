"""Searches a batch that failed for the elements to blame: those that raise, and those that cost a host elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.core.errors import HostDiedError
from headrace.core.result import Caught, Stage
from headrace.failures.fatal_search import LETHAL_IN_A_ROW, LETHAL_PROBES, MAX_TIMEOUTS, InjectedFailure, LostBatch
from headrace.failures.isolate_fatal import isolate_fatal

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


def bisect(
    start: int,
    stop: int,
    attempt: Callable[[int, int], ResultT | Caught],
    caught: Caught,
    is_collective: Callable[[BaseException], bool] = lambda _: False,
) -> Iterator[tuple[int, int, ResultT | Caught]]:
    """Halves a batch that failed until every bad element stands alone.

    Args:
        start: index of the first element.
        stop: index after the last element; greater than ``start``.
        attempt: runs the elements from one index up to another; returns their result, or the exception they raised.
        caught: what the whole batch raised.
        is_collective: whether an exception is no single element's fault; a part that raised one is not halved further.

    Yields:
        (start, stop, result) of consecutive parts that make up the batch. If the result is an exception, the part is
        a single element, or ``is_collective`` holds. One bad element in n costs at most 2 log2 n attempts, b bad ones
        O(b log n).
    """
    if stop - start == 1 or is_collective(caught.error):
        yield start, stop, caught
        return
    middle = (start + stop) // 2
    for begin, end in ((start, middle), (middle, stop)):
        result = attempt(begin, end)
        if isinstance(result, Caught):
            yield from bisect(begin, end, attempt, result, is_collective)
        else:
            yield begin, end, result


def probe(
    start: int,
    stop: int,
    places: Iterable[int],
    attempt: Callable[[int, int], ResultT | Caught],
    caught: Caught,
    *,
    search: Callable[[int, int, Caught], Iterator[tuple[int, int, ResultT | Caught]]],
) -> Iterator[tuple[int, int, ResultT | Caught]]:
    """Tries elements alone until one succeeds, then searches the others; gives them up if none succeeds.

    Args:
        start: index of the first element.
        stop: index after the last element.
        places: the elements to try alone, counted from ``start``.
        attempt: runs the elements from one index up to another; returns their result, or the exception they raised.
        caught: what the whole batch raised.
        search: finds the bad ones among elements whose attempt raised, as ``bisect`` does.

    Yields:
        (start, stop, result) of consecutive parts that make up the batch; parts that were given up get the exception of
        the batch. Costs one attempt for each place, plus those of the search.
    """
    tried: dict[int, ResultT | Caught] = {}
    is_hopeless = True
    for place in places:
        tried[start + place] = answer = attempt(start + place, start + place + 1)
        if not isinstance(answer, Caught):
            is_hopeless = False
            break
    begin = start
    for end in sorted([*tried, stop]):
        if begin < end and is_hopeless:
            yield begin, end, caught
        elif begin < end:
            answer = attempt(begin, end)
            if isinstance(answer, Caught):
                yield from search(begin, end, answer)
            else:
                yield begin, end, answer
        if end < stop:
            yield end, end + 1, tried[end]
        begin = end + 1


class FailureSearch(Generic[ResultT]):
    """Searches one batch: bisects elements that raise, and hands those that overrun together to ``isolate_fatal``.

    Once more than ``MAX_TIMEOUTS`` elements have overrun alone, everything unanswered fails with the last one's
    error. So it does once ``LETHAL_IN_A_ROW`` elements have killed a host alone, with no answer to another in between,
    unless one of ``LETHAL_PROBES`` elements, spread over the rest and tried alone, survives.

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
        self._lethal: list[Caught] = []
        """The exceptions of elements that killed a host alone, since the last answer."""
        self._stop = 0
        """The end of what is searched."""

    def among(self, start: int, stop: int, caught: Caught) -> Iterator[tuple[int, int, ResultT | Caught]]:
        """Finds the bad elements from ``start`` up to ``stop``, which raised ``caught``; yields as ``bisect`` does."""
        self._stop = max(self._stop, stop)
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
        if len(self._lethal) >= LETHAL_IN_A_ROW and self._are_lethal(start):
            return self._lethal[-1]
        answer = self._attempt(start, stop)
        if not isinstance(answer, Caught):
            self._lethal.clear()
        elif stop - start == 1 and is_overrun(answer.error):
            self._alone.append(answer)
        elif stop - start == 1 and isinstance(answer.error, HostDiedError):
            self._lethal.append(answer)
        return answer

    def _are_lethal(self, start: int) -> bool:
        """Whether the rest is lethal, too, judged by a few elements of it; asked once."""
        if len(self._lethal) == LETHAL_IN_A_ROW:
            rest = self._stop - start
            places = {start + (2 * number + 1) * rest // (2 * LETHAL_PROBES) for number in range(LETHAL_PROBES)}
            for place in sorted(places):
                answer = self._attempt(place, place + 1)
                if not isinstance(answer, Caught):
                    self._lethal.clear()
                    return False
                self._lethal.append(answer)
        return True

    def _ends_halving(self, error: BaseException) -> bool:
        return is_overrun(error) or self._is_collective(error)


def _lost(caught: Caught) -> LostBatch:
    return LostBatch(caught.error, timed_out=True, stage=Stage.INFERENCE)
