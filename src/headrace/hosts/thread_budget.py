"""How many threads each process may compute with where several share a machine's model, and so its cores."""

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
    """How many processes compute over models of the machine: one process writes it, the others read it."""

    def __init__(self, segment: Segment | None = None) -> None:
        self._segment = segment or Segment.create(0, _COUNT.size)

    @classmethod
    def received(cls, file: int) -> ComputingPage:
        """The same page in another process; takes the descriptor."""
        return cls(Segment(0, file, os.fstat(file).st_size))

    @property
    def file(self) -> int:
        """For other processes."""
        return self._segment.file

    def write(self, processes: int) -> None:
        """There are so many now."""
        _COUNT.pack_into(self._segment.memory, 0, processes)

    def read(self) -> int:
        """How many there are; at least the one that asks."""
        return max(1, int(_COUNT.unpack_from(self._segment.memory)[0]))


class ThreadBudget(threading.local):
    """Keeps what frameworks compute with, on each thread of this process, within the process's share of the cores.

    Args:
        page: says how many processes share them.
    """

    def __init__(self, page: ComputingPage) -> None:
        self._page = page
        self._processes = 1
        self._undo: list[Callable[[], None]] = []

    def keep(self) -> None:
        """To be called before a thread computes; costs nothing to speak of where nothing has changed."""
        processes = self._page.read()
        if processes != self._processes:
            self._processes = processes
            for undo in self._undo:
                undo()
            threads = max(1, allowed_cores() // processes)
            self._undo = [codec.limit_threads(threads) for codec in codecs()] if processes > 1 else []


_inherited: ThreadBudget | None = None


def inherit_page(file: int) -> None:
    """In a process that is to have forks which compute: they share the cores with others; takes the descriptor."""
    global _inherited  # noqa: PLW0603 - it is about the process
    _inherited = ThreadBudget(ComputingPage.received(file))


def inherited_budget() -> ThreadBudget | None:
    """What keeps a fork of that process within its share."""
    return _inherited


def limit_threads(count: int) -> None:
    """Has every framework that this process has imported compute with at most so many threads, for good."""
    for codec in codecs():
        codec.limit_threads(count)
