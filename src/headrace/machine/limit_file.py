"""The board of an endpoint's limit in a file of the runtime directory, which the processes of a machine map."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.failures.endpoint_board import LAYOUT, Board, Memory
from headrace.machine import shared_file
from headrace.machine.shared_file import LIMIT, UNUSABLE, SharedFile, path_of, sweep

_SIZE = ctypes.sizeof(Memory)
_TURN = 0
"""The byte that is locked by whom it is the turn of."""

_LOGGER = logging.getLogger(__name__)


class LimitFile(SharedFile):
    """A shared file that is mapped.

    Args:
        path: of the file; made if it is missing.

    Raises:
        OSError: it cannot be made, or others keep it locked.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, _SIZE)
        self._map = mmap.mmap(self.file, _SIZE)
        self.memory: Memory | None = Memory.from_buffer(self._map)

    def close(self) -> None:
        """Ends the use; removes the file if that was the last one."""
        self.memory = None
        with contextlib.suppress(BufferError):  # an error's frames may still hold a part of it
            self._map.close()
        super().close()


class SharedBoard(Board):
    """The board of an endpoint for all processes of this machine, and all of their transforms.

    Args:
        path: of its file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        files = shared_file.FILES
        with files.lock:  # locks are a process's: its threads join one after the other
            file = files.open(path, lambda: LimitFile(path))
            assert isinstance(file, LimitFile)
            self._file = file
            super().__init__(time.monotonic(), file.memory)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """As ``Board.turn``."""
        is_mine = not self.is_shared or self._file.lock(_TURN)
        try:
            yield is_mine
        finally:
            if is_mine and self.is_shared:
                self._file.unlock(_TURN)

    def close(self) -> None:
        """As ``Board.close``."""
        was_shared = self.is_shared
        super().close()
        files = shared_file.FILES
        with files.lock:  # nobody opens the file meanwhile
            if was_shared and files.close(self._path) is not None:
                self._file.close()


def shared_board(quota_name: str) -> Board:
    """The board for all requests of this machine that count against the named quota.

    If the runtime directory cannot be used, this process shares with nobody, and says so once.
    """
    try:
        path = path_of(LIMIT, LAYOUT, quota_name)
        with shared_file.FILES.lock:
            sweep(path)
            return SharedBoard(path)
    except UNUSABLE as error:
        _LOGGER.info("Each process finds out for itself how many requests an endpoint takes: %s", error)
        return Board(time.monotonic())
