"""Small files that a machine's processes share, and that go with their last user: of limits, budgets, who waits."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from headrace.core.config import Spent
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_at
from headrace.core.registry import Registry
from headrace.failures.endpoint_board import LAYOUT as LIMIT_LAYOUT
from headrace.failures.endpoint_board import Board, Memory
from headrace.machine.discovery import runtime_directory, secure_directory

LIMIT, BUDGET, SHORTAGE = ".limit", ".budget", ".shortage"
"""The kinds of files, as the ends of their names."""
_USED = 1
"""The byte that is locked by all who use the file."""
_TRIES = 200
_POLL_SECS = 0.005
_KEPT_SECS = {LIMIT: 0.0, BUDGET: 3600.0, SHORTAGE: 0.0}
"""How long a file without a user is kept: a worker process that was killed is started anew, and counts on."""
_LIMIT_SIZE = ctypes.sizeof(Memory)
_TURN = 0
"""The byte that is locked by whom it is the turn of: to send the next request, or to add to what was spent."""
_FLAG_BYTES = 8
_LONGEST_ADD_SECS, _SHORTEST_WAIT_SECS = 0.02, 0.0001
_SPENT = struct.Struct(f"{len(Spent._fields)}d")

_LOGGER = logging.getLogger(__name__)


class SharedFile:
    """A file that this process has opened, and locked against being removed.

    Locks are the kernel's, for a process and a byte: they end with the process, however that ends. Only one such object
    for a file may be open in a process, since the first one that closes ends the locks of all: use it by ``FILES``.

    Args:
        path: of the file; made if it is missing, full of zeros.
        size: in bytes.

    Raises:
        OSError: it cannot be made, or others keep it locked.
    """

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.file = _opened(path, size)

    def lock(self, byte: int) -> bool:
        """Locks a byte, if no other process has."""
        return _lock(self.file, fcntl.LOCK_EX, byte)

    def unlock(self, byte: int) -> None:
        """Gives the byte back."""
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, byte)

    def remove_unless_used(self) -> None:
        """Removes the file if no other process uses it, and the directory if it is then empty."""
        _remove_unless_used(self.path, self.file)

    def close(self) -> None:
        """Ends the use; removes the file if that was the last one."""
        self.remove_unless_used()
        os.close(self.file)


def path_of(kind: str, layout: str, name: str) -> str:
    """The path of a file in the runtime directory, for all processes with this version of Headrace.

    Raises:
        ConfigurationError: the runtime directory cannot be used.
    """
    digest = hashlib.sha256(f"{version('headrace')}\0{layout}\0{name}".encode()).hexdigest()
    return os.path.join(runtime_directory(), digest[:24] + kind)


def sweep(but: str) -> None:
    """Removes the files of processes that were killed, but for one that is about to be opened."""
    directory = os.path.dirname(but)
    for name in abandoned_files(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            if path != but and time.time() - os.stat(path).st_mtime >= _KEPT_SECS[os.path.splitext(name)[1]]:
                remove_abandoned(path)


def abandoned_files(directory: str) -> list[str]:
    """The names of the files that no process uses."""
    with contextlib.suppress(FileNotFoundError):  # the directory's last user has just removed it
        return sorted(
            name
            for name in os.listdir(directory)
            if name.endswith((LIMIT, BUDGET, SHORTAGE)) and list(_unused(os.path.join(directory, name)))
        )
    return []


def remove_abandoned(path: str) -> None:
    """Removes a file that no process uses, and the directory if it is then empty."""
    for file in _unused(path):
        _remove_unless_used(path, file)


def _unused(path: str) -> Iterator[int]:
    """A descriptor of the file, locked until the next step; nothing if a process uses the file."""
    if path in FILES:  # closing a file that is open here would end its locks
        return
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _lock(file, fcntl.LOCK_EX, _USED):
                yield file
        finally:
            os.close(file)


def _opened(path: str, size: int) -> int:
    """Descriptor of the file, made if need be, locked against being removed."""
    for _ in range(_TRIES):
        secure_directory(os.path.dirname(path))  # the last user of a file in it may have removed it
        with contextlib.ExitStack() as undo, contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            undo.callback(os.close, file)
            if _lock(file, fcntl.LOCK_SH, _USED) and is_at(file, path):
                _extend(file, size)
                undo.pop_all()
                return file
        time.sleep(_POLL_SECS)  # who removes it tells nobody
    raise TimeoutError(f"{path} is being removed by another process all the time; remove it.")


def _extend(file: int, size: int) -> None:
    """Makes the file long enough; not by a hole: on a full disk, writing into one would kill the process."""
    if os.fstat(file).st_size < size:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:  # macOS
            os.ftruncate(file, size)


def _lock(file: int, kind: int, byte: int) -> bool:
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # another process has it
        return False
    return True


def _remove_unless_used(path: str, file: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.lockf(file, fcntl.LOCK_UN, 1, _USED)  # so that the last of two that end together sees no user
        if _lock(file, fcntl.LOCK_EX, _USED) and is_at(file, path):
            os.remove(path)
            os.rmdir(os.path.dirname(path))


class SharedBoard(Board):
    """The board of an endpoint for all processes of this machine, and all of their transforms.

    Args:
        path: of its file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with FILES.lock:  # locks are a process's: its threads join one after the other
            self._file = FILES.open(path, lambda: SharedFile(path, _LIMIT_SIZE))
            self._map = mmap.mmap(self._file.file, _LIMIT_SIZE)
            super().__init__(time.monotonic(), Memory.from_buffer(self._map))

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
        with contextlib.suppress(BufferError):  # an error's frames may still hold a part of it
            self._map.close()
        with FILES.lock:  # nobody opens the file meanwhile
            if was_shared and FILES.close(self._path) is not None:
                self._file.close()


def shared_board(quota_name: str) -> Board:
    """The board for all requests of this machine that count against the named quota.

    If the runtime directory cannot be used, this process shares with nobody, and says so once.
    """
    try:
        path = path_of(LIMIT, LIMIT_LAYOUT, quota_name)
        with FILES.lock:
            sweep(path)
            return SharedBoard(path)
    except UNUSABLE as error:
        _LOGGER.info("Each process finds out for itself how many requests an endpoint takes: %s", error)
        return Board(time.monotonic())


class BudgetFile(SharedFile):
    """A shared file with a flag, that the budget is spent, and with what all processes have spent.

    Args:
        path: of the file; made if it is missing.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, _FLAG_BYTES + _SPENT.size)
        self._unwritten = Spent()

    def add(self, spent: Spent) -> None:
        """Adds to what has been spent; call it from one thread at a time.

        A process that is stopped while it adds holds up nobody: others count what they spend, and add it later.
        """
        until = time.monotonic() + (_LONGEST_ADD_SECS if self._unwritten == Spent() else 0.0)
        self._unwritten = self._unwritten.plus(spent)
        while not self.lock(_TURN):
            if time.monotonic() >= until:
                return
            time.sleep(_SHORTEST_WAIT_SECS)
        try:
            os.pwrite(self.file, _SPENT.pack(*self.total()), _FLAG_BYTES)
            self._unwritten = Spent()
        finally:
            self.unlock(_TURN)

    def remove_unless_used(self) -> None:
        """As for any file, once the others know what this process has spent."""
        if self._unwritten != Spent():
            with contextlib.suppress(OSError):
                self.add(Spent())
        super().remove_unless_used()

    def total(self) -> Spent:
        """What all processes have spent, as far as they have added it."""
        return Spent(*_SPENT.unpack(self._read(_SPENT.size, _FLAG_BYTES))).plus(self._unwritten)

    def mark_spent(self) -> None:
        """Tells all that the budget is spent."""
        os.pwrite(self.file, b"\1", 0)

    @property
    def is_spent(self) -> bool:
        """Whether a process has said so."""
        return self._read(1, 0) != b"\0"

    def _read(self, size: int, offset: int) -> bytes:
        found = os.pread(self.file, size, offset)
        if len(found) < size:
            raise OSError(errno.EIO, "the file of the budget is shorter than it was")
        return found


def open_budget_file(name: str) -> BudgetFile:
    """This process's use of the file of the named budget; end it with ``close_budget_file``.

    Raises:
        OSError: it cannot be used.
        ConfigurationError: the runtime directory cannot be used.
    """
    path = path_of(BUDGET, _SPENT.format, name)
    with FILES.lock:
        sweep(but=path)
        file = FILES.open(path, lambda: BudgetFile(path))
    assert isinstance(file, BudgetFile)
    return file


def close_budget_file(file: BudgetFile) -> None:
    """Ends a use of the file."""
    with FILES.lock:
        if file in FILES.values() and FILES.close(file.path) is not None:
            file.close()


FILES: Registry[str, SharedFile] = Registry()
"""Those that are open in this process, by path; its threads join one after the other, under its lock."""
UNUSABLE = (OSError, ConfigurationError)
"""What is raised where the runtime directory cannot be used."""


def _remove_all() -> None:
    """As the process ends: sessions may still be open, since engines close few of them."""
    for file in FILES.values():
        file.remove_unless_used()


def _forget() -> None:
    global FILES  # noqa: PLW0603 - a forked child has none of its parent's locks
    FILES = Registry()


atexit.register(_remove_all)
os.register_at_fork(after_in_child=_forget)
