"""The shared memory of a client's requests and of their responses, while they are in flight."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from headrace.ipc.segment import Segment


class Reply:
    """A response in the host's memory, which the host may reuse once this object is garbage-collected.

    Args:
        segment: the host's memory.
        size: size of the response, in bytes.
        call: the call's number.
        free: gets the number on garbage collection; the next request tells the host.
    """

    def __init__(self, segment: Segment, size: int, call: int, free: deque[int]) -> None:
        self.memory = segment.memory[:size]
        self._segment = segment
        self._call = call
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._call)  # without a lock: a garbage collection may run this in any thread at any time


class PendingRequest(NamedTuple):
    """A request without a response, and the memory that holds it."""

    segment: Segment
    size: int
    """Size of the request, in bytes."""
    sent: float
    """When it was sent, in seconds of the monotonic clock."""
