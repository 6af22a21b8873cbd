"""A page of shared memory in which a host says what it is doing; readable even when the host hangs or is dead."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

_COUNT_BYTES = 8
"""For the number of marks so far: the latest is in the first slot if it is even, in the second if it is odd."""
_MARK = struct.Struct("=qqqqq?")
_PLACES = (_COUNT_BYTES, _COUNT_BYTES + _MARK.size)


class Activity(IntEnum):
    """What a host is doing."""

    NOTHING = 0
    DECODING = 1
    LOADING = 2
    PREPROCESSING = 3
    INFERENCE = 4
    POSTPROCESSING = 5
    ANSWERING = 6


@dataclass(frozen=True)
class ActivitySnapshot:
    """What a host was doing at one moment."""

    call: int
    """The number of the request it is working on; 0: none."""
    activity: Activity
    position: int
    """The row of the request; -1: all of them."""
    index: int
    """Which operation of the activity, counted from 0: a handler may chain several pre- or postprocessing functions."""
    since_ns: int
    """When it began, in nanoseconds of the machine's monotonic clock."""
    is_elsewhere: bool = False
    """Whether another process does this, under its own time limit, while the host waits; or the host sleeps first."""

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return (time.monotonic_ns() - self.since_ns) / 1e9


class Progress:
    """The page: one process writes marks, others read the latest.

    Two slots take turns, so a read returns one complete mark even if the writer was stopped or killed in mid-write.

    Args:
        memory: at least ``Progress.SIZE`` bytes of shared memory.
    """

    SIZE = _PLACES[1] + _MARK.size

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._call = 0
        self._count = 0

    def begin(self, call: int) -> None:
        """Marks the start of a request."""
        self._call = call
        self.mark(Activity.DECODING)

    def end(self) -> None:
        """Marks that no request is in progress."""
        self._call = 0
        self.mark(Activity.NOTHING)

    def mark(self, activity: Activity, position: int = -1, index: int = 0, *, is_elsewhere: bool = False) -> None:
        """Marks the start of an operation."""
        self._count += 1
        place = _PLACES[self._count & 1]
        _MARK.pack_into(self._memory, place, self._call, activity, position, index, time.monotonic_ns(), is_elsewhere)
        self._memory[:_COUNT_BYTES].cast("Q")[0] = self._count  # in one piece; struct would write zeros first

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Marks the current operation as another process's for the duration; its clock starts again afterwards."""
        now = self.read()
        self.mark(now.activity, now.position, now.index, is_elsewhere=True)
        try:
            yield
        finally:
            self.mark(now.activity, now.position, now.index)

    @property
    def marks(self) -> int:
        """How many marks the writer has made."""
        return self._memory[:_COUNT_BYTES].cast("Q")[0]

    def read(self) -> ActivitySnapshot:
        """The latest mark."""
        while True:  # again if a mark was made meanwhile: with a second one, this slot may be half overwritten
            count = self.marks
            call, activity, *more = _MARK.unpack_from(self._memory, _PLACES[count & 1])
            if self.marks == count:
                return ActivitySnapshot(call, Activity(activity), *more)
