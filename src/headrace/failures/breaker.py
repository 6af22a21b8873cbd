"""What is tried less while it fails: batches by a circuit breaker, a model's loads after a pause."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from headrace.core.clock import backoff
from headrace.core.errors import copy_of

T = TypeVar("T")


class Probing(NamedTuple):
    """How many elements of failed batches are tried alone while the breaker is open; depends on what a try costs."""

    at_first: int
    """This many in total since it opened, from as few batches as possible: evidence that the model is dead, rather than
    good elements rare. If one in a hundred were good, a thousand failures would have a probability of 1 in 23,000."""
    later: int
    """After that, this many of each batch."""


CALLS = Probing(1_000, 3)
"""Each costs a call that raises something."""
HOSTS = Probing(32, 3)
"""Each costs a host."""
OUTAGES = Probing(32, 1)
"""Each costs two calls to a server that is failing."""
TIMEOUTS = Probing(3, 1)
"""Each costs the time limit."""

_GOLDEN = 0.6180339887
"""The golden ratio's fraction: the fractional parts of its multiples are spread evenly, however many there are."""
_PAUSE_FACTOR = 10
"""A pause is about this many times the last attempt, so that what fails takes at most a tenth of the time."""
_SHORTEST_SECS = 1.0
"""The shortest pause; each further load in a row that raises doubles it."""
_LONGEST_SECS = 300.0
"""Where doubling ends; the pause is longer only if loading itself takes long."""


class CircuitBreaker:
    """Opens after ``limit`` consecutive batches without a single success; the first success closes it. Thread-safe.

    While it is closed, every failed batch is searched for bad elements. While it is open, only some elements are
    tried, so that an outage or a broken model does not cost a search of every batch. Once one succeeds, the rest of
    the batch is searched as usual. Error messages do not count: a server that is down may put another number into
    each, and a thousand bad elements may all get the same one.
    """

    def __init__(self, limit: int = 5) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.failed_in_a_row = 0
        self._probed = 0
        """How many elements have been probed since it opened."""
        self._began, self._due = 0.0, -math.inf
        """When the last try has begun, and the next one may begin."""

    @property
    def is_open(self) -> bool:
        """Whether failed batches should be probed rather than searched."""
        return self.failed_in_a_row >= self._limit

    def record(self, *, succeeded: bool) -> None:
        """Notes whether any element of a batch, or of a part of one, succeeded."""
        with self._lock:
            self.failed_in_a_row = 0 if succeeded else self.failed_in_a_row + 1
            if succeeded:
                self._probed = 0

    def probes(self, size: int, probing: Probing) -> list[int]:
        """Indices of the elements of a failed batch to try alone, until one succeeds.

        They are spread over the batch, at other indices than in the last one, since good elements may have a fixed
        place in each batch.
        """
        with self._lock:
            count = min(size, max(probing.at_first - self._probed, probing.later))
            first = int(self._probed * _GOLDEN % 1 * size)
            self._probed += count
        return sorted((first + size * number // count) % size for number in range(count))

    def begins_try(self, now: float) -> bool:
        """Whether to try the model while it is open, although a fallback answers; ``end_try`` has to follow.

        Tries begin at most once a second, one at a time, and take at most a tenth of the time: a model that hangs is
        tried less often than one that raises. Times are in seconds.
        """
        with self._lock:
            if now < self._due:
                return False
            self._began, self._due = now, math.inf
            return True

    def end_try(self, now: float) -> None:
        """The try is over."""
        with self._lock:
            self._due = now + max(_SHORTEST_SECS, (_PAUSE_FACTOR - 1) * (now - self._began))


def survive_one_death(attempt: Callable[[], T], is_death: Callable[[T], bool]) -> T:
    """Repeats an attempt once if its process died: something outside may have killed it."""
    result = attempt()
    return attempt() if is_death(result) else result


class LoadPolicy:
    """The history of loading one model. Thread-safe.

    A load whose host dies is repeated once, since the death may have an outside cause; one that overruns is not.
    After that, and after a load that raises, batches get the error at once until a pause has passed. Pauses grow with
    each load that raises.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._deaths = 0
        self._raised_in_a_row = 0
        self._error: BaseException | None = None
        self._until_ns = 0

    def current_error(self) -> BaseException | None:
        """A copy of the error with which batches should fail without a new load; None: load."""
        with self._lock:
            return copy_of(self._error) if self._error is not None and self._now_ns() < self._until_ns else None

    def loaded(self) -> None:
        """Notes a successful load."""
        with self._lock:
            self._deaths, self._raised_in_a_row, self._error = 0, 0, None

    def failed(self, error: BaseException, seconds: float, *, timed_out: bool) -> bool:
        """Notes that the host died or overran after ``seconds``; returns whether to try again at once."""
        with self._lock:
            self._deaths += not timed_out
            if not timed_out and self._deaths == 1:
                return True
            self._deaths = 0
            self._pause(error, seconds * _PAUSE_FACTOR)
            return False

    def raised(self, error: BaseException, seconds: float) -> None:
        """Notes that loading raised an error after ``seconds``."""
        with self._lock:
            self._raised_in_a_row += 1
            pause = backoff(self._raised_in_a_row, _SHORTEST_SECS, _LONGEST_SECS)
            self._pause(error, max(pause, seconds * _PAUSE_FACTOR))

    def _pause(self, error: BaseException, seconds: float) -> None:
        self._error = copy_of(error)
        self._until_ns = self._now_ns() + int(seconds * 1e9)
