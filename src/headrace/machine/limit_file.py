"""The board of an endpoint's limit in a file of the runtime directory, which the processes of a machine map."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import logging
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from headrace.core.errors import ConfigurationError
from headrace.core.registry import Registry
from headrace.failures.endpoint_board import LAYOUT, Board, Memory
from headrace.machine.runtime_directory import is_at, runtime_directory, secure_directory

_KIND = ".limit"
_SIZE = ctypes.sizeof(Memory)
_TURN, _USED, _MADE = 0, 1, 2
"""Bytes that are locked: by whom it is the turn of; by all who use the file; by who makes it."""
_TRIES = 200
_POLL_SECS = 0.005

_LOGGER = logging.getLogger(__name__)


class LimitFile:
    """A file that this process has opened, mapped, and locked against being removed.

    Locks are the kernel's, for a process and a byte: they end with the process, however that ends. Only one such object
    for a file may be open in a process, since the first one that closes ends the locks of all.

    Args:
        path: of the file; made if it is missing.

    Raises:
        OSError: it cannot be made, or others keep it locked.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _opened(path)
        self._map = mmap.mmap(self._file, _SIZE)
        self.memory: Memory | None = Memory.from_buffer(self._map)

    def lock(self) -> bool:
        """Takes the turn, if nobody has it."""
        return _lock(self._file, fcntl.LOCK_EX, _TURN)

    def unlock(self) -> None:
        """Gives the turn back."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _TURN)

    def remove_unless_used(self) -> None:
        """Removes the file if no other process uses it, and the directory if it is then empty."""
        _remove_unless_used(self._path, self._file)

    def close(self) -> None:
        """Ends the use; removes the file if that was the last one."""
        self.remove_unless_used()
        self.memory = None
        with contextlib.suppress(BufferError):  # an error's frames may still hold a part of it
            self._map.close()
        os.close(self._file)


class SharedBoard(Board):
    """The board of an endpoint for all processes of this machine, and all of their transforms.

    Args:
        path: of its file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with _FILES.lock:  # locks are a process's: its threads join one after the other
            self._file = _FILES.open(path, lambda: LimitFile(path))
            super().__init__(time.monotonic(), self._file.memory)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """As ``Board.turn``."""
        is_mine = not self.is_shared or self._file.lock()
        try:
            yield is_mine
        finally:
            if is_mine and self.is_shared:
                self._file.unlock()

    def close(self) -> None:
        """As ``Board.close``."""
        was_shared = self.is_shared
        super().close()
        with _FILES.lock:  # nobody opens the file meanwhile
            if was_shared and _FILES.close(self._path) is not None:
                self._file.close()


def shared_board(quota_name: str) -> Board:
    """The board for all requests of this machine that count against the named quota.

    If the runtime directory cannot be used, this process shares with nobody, and says so once.
    """
    digest = hashlib.sha256(f"{version('headrace')}\0{LAYOUT}\0{quota_name}".encode()).hexdigest()
    try:
        directory = runtime_directory()
        with _FILES.lock:
            _sweep(directory)
            return SharedBoard(os.path.join(directory, digest[:24] + _KIND))
    except (OSError, ConfigurationError) as error:
        _LOGGER.info("Each process finds out for itself how many requests an endpoint takes: %s", error)
        return Board(time.monotonic())


def _opened(path: str) -> int:
    """Descriptor of the file, made if need be, locked against being removed."""
    for _ in range(_TRIES):
        secure_directory(os.path.dirname(path))  # the last user of a file in it may have removed it
        with contextlib.ExitStack() as undo, contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            undo.callback(os.close, file)
            if _lock(file, fcntl.LOCK_SH, _USED) and is_at(file, path) and _made(file):
                undo.pop_all()
                return file
        time.sleep(_POLL_SECS)  # who removes it, or makes it, tells nobody
    raise TimeoutError(f"{path} is being made or removed by another process all the time; remove it.")


def _made(file: int) -> bool:
    """Whether the file is as long as it has to be; makes it so, unless another process does."""
    if os.fstat(file).st_size >= _SIZE:
        return True
    if not _lock(file, fcntl.LOCK_EX, _MADE):
        return False
    if os.fstat(file).st_size < _SIZE:
        os.pwrite(file, bytes(_SIZE), 0)  # not a hole: on a full disk, writing into one would kill the process
    fcntl.lockf(file, fcntl.LOCK_UN, 1, _MADE)
    return True


def _lock(file: int, kind: int, byte: int) -> bool:
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # another process has it
        return False
    return True


def _remove_unless_used(path: str, file: int) -> None:
    with contextlib.suppress(OSError):
        if _lock(file, fcntl.LOCK_EX, _USED) and is_at(file, path):
            os.remove(path)
            os.rmdir(os.path.dirname(path))


def _sweep(directory: str) -> None:
    """Removes the files of processes that were killed."""
    entries: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # the directory's last user has just removed it
        entries = os.listdir(directory)
    for entry in entries:
        path = os.path.join(directory, entry)
        if entry.endswith(_KIND) and path not in _FILES:  # closing a file that is open here would end its locks
            with contextlib.suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    _remove_unless_used(path, file)
                finally:
                    os.close(file)


_FILES: Registry[str, LimitFile] = Registry()
"""By path."""


def _remove_all() -> None:
    """As the process ends: sessions may still be open, since engines close few of them."""
    for file in _FILES.values():
        file.remove_unless_used()


def _forget() -> None:
    global _FILES  # noqa: PLW0603 - a forked child has none of its parent's locks
    _FILES = Registry()


atexit.register(_remove_all)
os.register_at_fork(after_in_child=_forget)
