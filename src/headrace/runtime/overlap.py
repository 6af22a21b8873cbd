"""Decides which batches of a worker run on its background thread. Pure: the caller measures the times."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol


class OverlapPolicy(Protocol):
    """Decides which batches run on the background thread."""

    def next_in_background(self) -> bool:
        """Whether the next batch runs in the background; if not, the caller first collects those that do."""
        ...

    def record_inline(self, size: int, call: float, whole: float) -> None:
        """Records an inline batch: seconds in the model, and seconds since the previous batch ended."""
        ...

    def record_background(self, size: int, seconds: float) -> None:
        """Records a background batch that was collected ``seconds`` after the previous one."""
        ...


class _InlineTimes(NamedTuple):
    """A batch that ran on the bundle's thread."""

    size: int
    call: float
    """Seconds in the model."""
    whole: float
    """Seconds since the previous batch: collecting elements, calling the model, emitting predictions."""


class AdaptiveOverlap:
    """Tries the background thread now and then, and uses it for as long as it is faster.

    Batches run inline first. Once their size has settled, calls are long enough, and the bundle's thread has enough
    other work, a period of batches runs in the background. Then one runs inline again, which measures an undisturbed
    call, and the two ways are compared. If the background was not clearly faster, as with Python code that holds the
    GIL, all batches run inline for a rest; each failed trial makes the next rest longer.
    """

    _SHORTEST_CALL = 0.002
    _SHORTEST_SAVING = 0.0005
    """Seconds per batch: ten times the cost of handing it to another thread."""
    _LEAST_SHARE = 0.1
    """The least fraction of a batch's time that the background has to save."""
    _ENOUGH = 3
    _REMEMBERED = 8
    _SETTLED = 1.3
    _PERIODS = (16, 128)
    _RESTS = (32, 2048)

    def __init__(self) -> None:
        self._here: deque[_InlineTimes] = deque(maxlen=self._REMEMBERED)
        self._left = 0
        """How many batches of this period have yet to run in the background."""
        self._size, self._seconds = 0, 0.0
        """Elements and seconds of this period's collected batches."""
        self._period, _ = self._PERIODS
        self._rest, _ = self._RESTS
        self._resting = 0

    def next_in_background(self) -> bool:
        """Whether this period has batches left."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def record_inline(self, size: int, call: float, whole: float) -> None:
        """Ends the period if one is running, and starts the next if it promises enough."""
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

    def record_background(self, size: int, seconds: float) -> None:
        """Adds the batch to this period's measurements."""
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
