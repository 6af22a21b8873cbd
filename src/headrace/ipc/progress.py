"""Where a host is: a few numbers in shared memory that its owner can read even when the host hangs or is dead."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

_COUNT = struct.Struct("@Q")
"""How many marks were made: the last one is in the first place if they are even, else in the second."""
_MARK = struct.Struct("=qqqqq?")
_PLACES = (_COUNT.size, _COUNT.size + _MARK.size)


class Activity(IntEnum):
    """What a host does."""

    NOTHING = 0
    DECODING = 1
    LOADING = 2
    PREPROCESSING = 3
    INFERENCE = 4
    POSTPROCESSING = 5
    ANSWERING = 6
    WAITING = 7
    """Before something is tried again."""


@dataclass(frozen=True)
class ActivitySnapshot:
    """What a host did at some moment."""

    call: int
    """The request it is working on; 0: none."""
    activity: Activity
    position: int
    """Which of the request's rows; -1: all of them."""
    index: int
    """Which operation of its kind."""
    since_ns: int
    """When it began, by the machine's monotonic clock."""
    is_elsewhere: bool = False
    """Whether it waits for another process that does this, and that has a time limit of its own."""

    @property
    def seconds(self) -> float:
        """How long it has been doing this."""
        return (time.monotonic_ns() - self.since_ns) / 1e9


class Progress:
    """The numbers; one process marks them, another reads them.

    What is read is always of one mark, even if the other process has been stopped, or has died, while it made another.

    Args:
        memory: at least ``Progress.SIZE`` bytes.
    """

    SIZE = _PLACES[1] + _MARK.size

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._call = 0
        self._count = 0

    def begin(self, call: int) -> None:
        """A new request has come."""
        self._call = call
        self.mark(Activity.DECODING)

    def end(self) -> None:
        """The request is answered."""
        self._call = 0
        self.mark(Activity.NOTHING)

    def mark(self, activity: Activity, position: int = -1, index: int = 0, *, is_elsewhere: bool = False) -> None:
        """Something begins."""
        self._count += 1
        place = _PLACES[self._count & 1]
        _MARK.pack_into(self._memory, place, self._call, activity, position, index, time.monotonic_ns(), is_elsewhere)
        _COUNT.pack_into(self._memory, 0, self._count)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """While another process does what goes on; then it begins here."""
        now = self.read()
        self.mark(now.activity, now.position, now.index, is_elsewhere=True)
        try:
            yield
        finally:
            self.mark(now.activity, now.position, now.index)

    @property
    def marks(self) -> int:
        """How many marks the other process has made."""
        return int(_COUNT.unpack_from(self._memory)[0])

    def read(self) -> ActivitySnapshot:
        """What the other process does."""
        while True:
            (count,) = _COUNT.unpack_from(self._memory)
            call, activity, *more = _MARK.unpack_from(self._memory, _PLACES[count & 1])
            if _COUNT.unpack_from(self._memory) == (count,):
                return ActivitySnapshot(call, Activity(activity), *more)
