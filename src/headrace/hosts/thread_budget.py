"""Divides the machine's cores among the processes that compute with its shared models."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from struct import Struct

from headrace.hosts.system import allowed_cores
from headrace.ipc.segment import Segment
from headrace.ipc.serialization import codecs

_COUNT = Struct("@Q")


class ComputingPage:
    """A page of shared memory with the number of computing processes; the manager writes it, the others read it."""

    def __init__(self, segment: Segment | None = None) -> None:
        self._segment = segment or Segment.create(0, _COUNT.size)

    @classmethod
    def received(cls, file: int) -> ComputingPage:
        """Opens the page in another process; takes ownership of the descriptor."""
        return cls(Segment(0, file, os.fstat(file).st_size))

    @property
    def file(self) -> int:
        """The page's descriptor, to send to other processes."""
        return self._segment.file

    def write(self, processes: int) -> None:
        """Sets the number of computing processes."""
        _COUNT.pack_into(self._segment.memory, 0, processes)

    def read(self) -> int:
        """The number of computing processes; at least 1, the caller."""
        return max(1, int(_COUNT.unpack_from(self._segment.memory)[0]))


class ThreadBudget(threading.local):
    """Limits the native threads of frameworks to this process's share of the cores; state is per thread.

    Args:
        page: says how many processes share the cores.
    """

    def __init__(self, page: ComputingPage) -> None:
        self._page = page
        self._processes = 1
        self._undo: list[Callable[[], None]] = []

    def keep(self) -> None:
        """Updates the calling thread's limits; call it before each computation. Cheap when nothing has changed."""
        processes = self._page.read()
        if processes != self._processes:
            self.release()
            self._processes = processes
            threads = max(1, allowed_cores() // processes)
            self._undo = [codec.limit_threads(threads) for codec in codecs()] if processes > 1 else []

    def release(self) -> None:
        """Removes the calling thread's limits."""
        for undo in reversed(self._undo):  # in reverse: frameworks may share a library
            undo()
        self._undo, self._processes = [], 1


_inherited: ThreadBudget | None = None


def inherit_page(file: int) -> None:
    """In the fork server: sets the page for its future hosts; takes ownership of the descriptor."""
    global _inherited  # noqa: PLW0603 - process-wide state
    _inherited = ThreadBudget(ComputingPage.received(file))


def inherited_budget() -> ThreadBudget | None:
    """In a host: the thread budget set in its fork server; None if there is none."""
    return _inherited


def limit_threads(count: int) -> None:
    """Limits every framework that this process has imported to ``count`` threads, permanently."""
    for codec in codecs():
        codec.limit_threads(count)
