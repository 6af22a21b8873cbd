"""Memory that two processes share: segments, and the pools they are taken from again and again."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from itertools import count

_SMALLEST = 1 << 16
"""Of a segment, in bytes."""
_MOST_FREE = 4
"""How many segments a pool keeps for later."""
_WASTEFUL = 1 << 24
"""From this size on, in bytes, a segment that was hardly used is not kept."""


class Segment:
    """Memory, shared with whoever has its file; freed when the last one has let go.

    Args:
        name: the same in both processes.
        file: a file descriptor, which the segment closes.
        size: bytes.
    """

    def __init__(self, name: int, file: int, size: int) -> None:
        self.name = name
        self.file = file
        self.size = size
        try:
            self._map = mmap.mmap(file, size)
        except BaseException:
            self.file = -1
            os.close(file)
            raise
        self._block_type = ctypes.c_char * size
        self.memory = memoryview(self._map)

    @classmethod
    def create(cls, name: int, size: int) -> Segment:
        """A new one of at least ``size`` bytes."""
        room = max(_SMALLEST, 1 << (size - 1).bit_length()) if size > 1 else _SMALLEST
        file = anonymous_file("headrace")
        try:
            os.ftruncate(file, room)
        except BaseException:
            os.close(file)
            raise
        return cls(name, file, room)

    def lend(self, size: int) -> tuple[memoryview, Callable[[], bool]]:
        """The first ``size`` bytes, and a function that says whether anything still refers to them.

        A handler may keep an array of its batch; its memory must not be used for another batch then.
        """
        block = self._block_type.from_buffer(self._map)
        reference = weakref.ref(block)
        return memoryview(block).cast("B")[:size], lambda: reference() is not None

    def close(self) -> None:
        """Lets go; memory that is still lent stays until it is given back. So does forgetting the segment."""
        if self.file >= 0:
            self.memory.release()
            del self._map
            os.close(self.file)
            self.file = -1

    __del__ = close


class SegmentPool:
    """Segments that one process fills for another; not thread-safe."""

    def __init__(self) -> None:
        self._names = count(1)
        self._free: list[Segment] = []
        self._sent: set[int] = set()
        self.dropped: list[int] = []
        """Names of segments that the other process should let go of, too; whoever tells it empties the list."""

    def take(self, size: int) -> Segment:
        """A segment of at least ``size`` bytes, for the caller alone until it is given back."""
        fitting = [segment for segment in self._free if segment.size >= size]
        if not fitting:
            return Segment.create(next(self._names), size)
        segment = min(fitting, key=lambda one: one.size)
        self._free.remove(segment)
        return segment

    def introduce(self, segment: Segment) -> list[int]:
        """The file descriptors that must be sent along: the segment's, the first time."""
        if segment.name in self._sent:
            return []
        self._sent.add(segment.name)
        return [segment.file]

    def give_back(self, segment: Segment, used: int) -> None:
        """Takes a segment back of which ``used`` bytes were needed."""
        if segment.size > _WASTEFUL and used < segment.size // 16:
            self.drop(segment)
            return
        self._free.append(segment)
        if len(self._free) > _MOST_FREE:
            smallest = min(self._free, key=lambda one: one.size)
            self._free.remove(smallest)
            self.drop(smallest)

    def drop(self, segment: Segment) -> None:
        """Lets go of a segment that was taken."""
        self._sent.discard(segment.name)
        self.dropped.append(segment.name)
        segment.close()


class PeerSegments:
    """The segments that another process fills for this one; not thread-safe."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}

    def segment(self, name: int, files: list[int]) -> Segment:
        """The segment of that name; its file comes the first time, and is taken out of ``files``."""
        if name not in self._segments:
            file = files.pop(0)
            self._segments[name] = Segment(name, file, os.fstat(file).st_size)
        return self._segments[name]

    def drop(self, names: list[int]) -> None:
        """Lets go of those that the other process no longer fills."""
        for name in names:
            segment = self._segments.pop(name, None)
            if segment is not None:
                segment.close()


def anonymous_file(name: str) -> int:
    """A new file without a place in any file system, gone when its last user is.

    Where there is no memfd, a temporary file whose name is removed at once.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
