"""Shared memory segments, the pools that reuse them, and what of them is in flight."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from operator import attrgetter

_SMALLEST = 1 << 16
"""Minimum size of a segment, in bytes."""
_MOST_FREE = 4
"""How many free segments a pool keeps."""
_SIZE = attrgetter("size")
_WASTEFUL = 1 << 24
"""A free segment larger than this many bytes is dropped if its last use needed under a sixteenth of it."""


class Segment:
    """Memory shared by every process that holds its file; freed when the last of them has closed it.

    Args:
        name: a number that both processes know it by.
        file: a file descriptor; the segment takes ownership and closes it.
        size: in bytes.
    """

    def __init__(self, name: int, file: int, size: int) -> None:
        self.name = name
        self.size = size
        self.file = -1
        try:
            self._map = mmap.mmap(file, size)
        except BaseException:
            os.close(file)
            raise
        self.memory = memoryview(self._map)
        self.file = file
        self._block_type = ctypes.c_char * size

    @classmethod
    def create(cls, name: int, size: int) -> Segment:
        """Creates a segment of at least ``size`` bytes, rounded up to a power of two."""
        room = max(_SMALLEST, 1 << (size - 1).bit_length()) if size > 1 else _SMALLEST
        return cls(name, anonymous_file("headrace", room), room)

    @classmethod
    def received(cls, file: int, name: int = 0) -> Segment:
        """Opens a segment of another process; takes ownership of the descriptor."""
        return cls(name, file, os.fstat(file).st_size)

    def lend(self, size: int) -> tuple[memoryview, Callable[[], bool]]:
        """The first ``size`` bytes, and a function that says whether anything still refers to them.

        A handler may keep an array of its batch; that memory must then not be reused for another batch.
        """
        block = self._block_type.from_buffer(self._map)
        reference = weakref.ref(block)
        return memoryview(block).cast("B")[:size], lambda: reference() is not None

    def close(self) -> None:
        """Closes the file; the memory is unmapped once nothing lent refers to it. Deletion does the same."""
        file, self.file = self.file, -1
        if file < 0:
            return
        try:
            self.memory.release()
            del self._map
        finally:
            self._close_file(file)

    _close_file = staticmethod(os.close)
    """As the interpreter exits, it may delete segments after the module's own ``os``."""
    __del__ = close


class SegmentPool:
    """Segments that this process writes for another; not thread-safe."""

    def __init__(self) -> None:
        self._names = count(1)
        self._free: list[Segment] = []
        self._sent: set[int] = set()
        self.dropped: list[int] = []
        """Names of dropped segments that the other process must close, too; the caller sends them and clears it."""

    def take(self, size: int) -> Segment:
        """Takes the smallest free segment of at least ``size`` bytes, or creates one; the caller gives it back."""
        fitting = [segment for segment in self._free if segment.size >= size]
        if not fitting:
            return Segment.create(next(self._names), size)
        best = min(fitting, key=_SIZE)
        self._free.remove(best)
        return best

    def files_for(self, segment: Segment) -> list[int]:
        """The descriptors to send with the next message: the segment's the first time, then none."""
        if segment.name in self._sent:
            return []
        self._sent.add(segment.name)
        return [segment.file]

    def give_back(self, segment: Segment, used: int) -> None:
        """Frees a segment for reuse; ``used`` is how many of its bytes were needed."""
        if segment.size > _WASTEFUL and used < segment.size // 16:
            self.drop(segment)
            return
        self._free.append(segment)
        if len(self._free) > _MOST_FREE:
            smallest = min(self._free, key=_SIZE)
            self._free.remove(smallest)
            self.drop(smallest)

    def drop(self, segment: Segment) -> None:
        """Closes a segment instead of giving it back."""
        self._sent.discard(segment.name)
        self.dropped.append(segment.name)
        segment.close()


class PeerSegments:
    """The segments that another process writes for this one; not thread-safe."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}

    def segment(self, name: int, files: list[int]) -> Segment:
        """The segment of that name. The first time, its descriptor is taken from the front of ``files``."""
        if name not in self._segments:
            self._segments[name] = Segment.received(files.pop(0), name)
        return self._segments[name]

    def drop(self, names: Iterable[int]) -> None:
        """Closes the segments that the other process has dropped."""
        for name in names:
            segment = self._segments.pop(name, None)
            if segment is not None:
                segment.close()


class Reply:
    """A response of ``size`` bytes in the host's memory, which the host may reuse once this object is collected.

    Then ``free`` gets the call's number, which the next request tells the host.
    """

    def __init__(self, segment: Segment, size: int, call: int, free: deque[int]) -> None:
        self.memory = segment.memory[:size]
        self._segment = segment
        self._call = call
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._call)  # without a lock: a garbage collection may run this in any thread at any time


def anonymous_file(name: str, size: int) -> int:
    """Creates a file of zeros without a path, freed with its last descriptor and mapping.

    Without memfd (macOS), it is an unlinked temporary file; else it can be sealed.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile(prefix=name) as opened:
            file = os.dup(opened.fileno())
    try:
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return file
