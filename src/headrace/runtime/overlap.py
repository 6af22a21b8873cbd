"""Decides which of a worker's batches run beside the bundle's thread. Pure: it is told the times."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol


class OverlapPolicy(Protocol):
    """Says which batches run beside."""

    def next_is_beside(self) -> bool:
        """Whether the next batch is to run beside; else all that do are to come back before it runs."""
        ...

    def was_here(self, size: int, call: float, whole: float) -> None:
        """A batch of that size has run here: so many seconds in the model, and since the batch before."""
        ...

    def was_beside(self, size: int, seconds: float) -> None:
        """A batch of that size has come back, so many seconds after the batch before."""
        ...


class _InlineTimes(NamedTuple):
    """A batch for which the bundle's thread waited."""

    size: int
    call: float
    """Seconds in the model."""
    whole: float
    """Seconds since the batch before: to collect its elements, in the model, to hand on the predictions."""


class AdaptiveOverlap:
    """Weighs what running beside saves against what it costs, by trying it.

    Batches run here first. Once their size has settled, and their calls are long and leave the thread enough to do, a
    period of batches runs beside; then one runs here again, which shows what an undisturbed call takes, and the two
    ways are compared. If the other was not clearly faster, as with Python code that holds the interpreter's lock, all
    run here for a while; with each trial in vain for longer.
    """

    _SHORTEST_CALL = 0.002
    _SHORTEST_SAVING = 0.0005
    """Seconds for a batch: ten times what it costs to hand it over."""
    _LEAST_SHARE = 0.1
    """Of the time for a batch, that is to be saved."""
    _ENOUGH = 3
    _REMEMBERED = 8
    _SETTLED = 1.3
    _PERIODS = (16, 128)
    _RESTS = (32, 2048)

    def __init__(self) -> None:
        self._here: deque[_InlineTimes] = deque(maxlen=self._REMEMBERED)
        self._left = 0
        """How many batches of this period are still to run beside."""
        self._size, self._seconds = 0, 0.0
        """Of this period's batches that have come back."""
        self._period, _ = self._PERIODS
        self._rest, _ = self._RESTS
        self._resting = 0

    def next_is_beside(self) -> bool:
        """See ``Policy``."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def was_here(self, size: int, call: float, whole: float) -> None:
        """See ``Policy``."""
        if self._size:
            self._policy()
        if self._resting:
            self._resting -= 1
        if call < self._SHORTEST_CALL:
            self._here.clear()
            return
        settled = size <= self._SETTLED * max((one.size for one in self._here), default=0)
        self._here.append(_InlineTimes(size, call, whole))
        if settled and not self._resting and self._is_worth_trying():
            self._left = self._period

    def was_beside(self, size: int, seconds: float) -> None:
        """See ``Policy``."""
        self._size += size
        self._seconds += seconds

    def _is_worth_trying(self) -> bool:
        count = len(self._here)
        call, whole = (sum(seconds) / count for seconds in list(zip(*self._here, strict=True))[1:])
        saving = min(call, whole - call)
        return count >= self._ENOUGH and saving >= max(self._SHORTEST_SAVING, self._LEAST_SHARE * whole)

    def _policy(self) -> None:
        whole = sum(one.whole for one in self._here) / max(1, sum(one.size for one in self._here))
        if self._seconds / self._size < (1 - self._LEAST_SHARE) * whole:
            self._period = min(2 * self._period, self._PERIODS[1])
            self._rest = self._RESTS[0]
        else:
            self._period, self._resting = self._PERIODS[0], self._rest
            self._rest = min(4 * self._rest, self._RESTS[1])
        self._size, self._seconds, self._left = 0, 0.0, 0
