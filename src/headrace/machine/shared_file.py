"""Small files that a machine's processes share, and that go with their last user: of limits, budgets, who waits."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib.metadata import version
from itertools import count
from typing import TypeVar, cast

from headrace.core.config import Spent
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_at
from headrace.core.registry import Registry
from headrace.failures.endpoint_board import LAYOUT as LIMIT_LAYOUT
from headrace.failures.endpoint_board import Board, Memory
from headrace.machine.discovery import open_locked, runtime_directory, secure_directory

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
"""The byte that is locked by whom it is the turn of: to send the next request."""
_FLAG_BYTES = 8
_FIRST_ROW = 2
"""The byte that is locked by whom the first row of a budget belongs to; the next rows have the next bytes."""
_SPENT = struct.Struct(f"{len(Spent._fields)}d")
_WAITS = struct.Struct("ddq")
"""Since when a process waits, when it last said so, and its id; the times are of the machine's monotonic clock."""
_FRESH_SECS = 1.0
"""Whoever said so longer ago has ended, or is done waiting."""
FileT = TypeVar("FileT", bound="SharedFile")

_LOGGER = logging.getLogger(__name__)


class SharedFile:
    """A file that this process has opened, and locked against being removed.

    Locks are the kernel's, for a process and a byte: they end with the process, however that ends. Only one such object
    for a file may be open in a process, since the first one that closes ends the locks of all: ``used`` sees to it.

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

    def leave(self) -> None:
        """Ends a use of the file, which the last one in this process closes, and the last one of all removes."""
        with FILES.lock:  # no other thread may open the file now
            if self in FILES.values() and FILES.close(self.path) is not None:  # else it is the parent's
                _remove_unless_used(self.path, self.file)
                os.close(self.file)


def used(path: str, make: Callable[[str], FileT]) -> FileT:
    """This process's use of a file; ``leave`` ends it. Files of processes that were killed are removed first."""
    with FILES.lock:  # locks are a process's: its threads join one after the other
        _sweep(but=path)
        return cast("FileT", FILES.open(path, lambda: make(path)))


def _path_of(kind: str, layout: str, name: str) -> str:
    """The path of a file in the runtime directory, for all processes with this version of Headrace."""
    digest = hashlib.sha256(f"{version('headrace')}\0{layout}\0{name}".encode()).hexdigest()
    return os.path.join(runtime_directory(), digest[:24] + kind)


def _sweep(but: str) -> None:
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
            if name.endswith((LIMIT, BUDGET, SHORTAGE)) and remove_abandoned(os.path.join(directory, name), look=True)
        )
    return []


def remove_abandoned(path: str, look: bool = False) -> bool:
    """Removes a file that no process uses, and the directory if it is then empty; or only ``look``s whether it would.

    Returns whether no process uses it.
    """
    if path in FILES:  # closing a file that is open here would end its locks
        return False
    with contextlib.suppress(OSError), open(path, "r+b") as opened:
        is_unused = _lock(opened.fileno(), fcntl.LOCK_EX, _USED)
        if is_unused and not look:
            _remove_unless_used(path, opened.fileno())
        return is_unused
    return False


def _opened(path: str, size: int) -> int:
    """Descriptor of the file, made if need be, locked against being removed."""
    for _ in range(_TRIES):
        secure_directory(os.path.dirname(path))  # the last user of a file in it may have removed it
        with contextlib.ExitStack() as undo:
            file = open_locked(path, lambda file: _lock(file, fcntl.LOCK_SH, _USED))
            if file is not None:
                undo.callback(os.close, file)
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
    """Removes a file if no other process uses it, and the directory if it is then empty."""
    with contextlib.suppress(OSError):
        fcntl.lockf(file, fcntl.LOCK_UN, 1, _USED)  # so that the last of two that end together sees no user
        if _lock(file, fcntl.LOCK_EX, _USED) and is_at(file, path):
            os.remove(path)
            os.rmdir(os.path.dirname(path))


class SharedBoard(Board):
    """The board of an endpoint for all processes of this machine, and all of their transforms."""

    def __init__(self, path: str) -> None:
        with FILES.lock:
            self._file = used(path, lambda path: SharedFile(path, _LIMIT_SIZE))
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
        if was_shared:
            self._file.leave()


def shared_board(quota_name: str) -> Board:
    """The board for all requests of this machine that count against the named quota.

    If the runtime directory cannot be used, this process shares with nobody, and says so once.
    """
    try:
        return SharedBoard(_path_of(LIMIT, LIMIT_LAYOUT, quota_name))
    except UNUSABLE as error:
        _LOGGER.info("Each process finds out for itself how many requests an endpoint takes: %s", error)
        return Board(time.monotonic())


class BudgetFile(SharedFile):
    """A shared file with a flag, that the budget is spent, and with what each process has spent, a row for each.

    A process takes the first row that no living one has, and adds to what it finds there.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, _FLAG_BYTES)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.file)
            row = next(row for row in count() if self.lock(_FIRST_ROW + row))
            self._place = _FLAG_BYTES + row * _SPENT.size
            self._own = Spent(*_SPENT.unpack(os.pread(self.file, _SPENT.size, self._place).ljust(_SPENT.size, b"\0")))
            self.add(Spent())  # the disk may be full
            undo.pop_all()

    def add(self, spent: Spent) -> None:
        """Adds to what has been spent; call it from one thread at a time."""
        self._own = self._own.plus(spent)
        os.pwrite(self.file, _SPENT.pack(*self._own), self._place)

    def total(self) -> Spent:
        """What all processes have spent."""
        rows = os.pread(self.file, os.fstat(self.file).st_size, _FLAG_BYTES)
        found = _SPENT.iter_unpack(rows[: len(rows) - len(rows) % _SPENT.size])
        return reduce(Spent.plus, (Spent(*row) for row in found), Spent())

    def mark_spent(self) -> None:
        """Tells all that the budget is spent."""
        os.pwrite(self.file, b"\1", 0)

    @property
    def is_spent(self) -> bool:
        """Whether a process has said so."""
        return os.pread(self.file, 1, 0) == b"\1"


def open_budget_file(name: str) -> BudgetFile:
    """This process's use of the file of the named budget.

    Raises:
        OSError: it cannot be used.
        ConfigurationError: the runtime directory cannot be used.
    """
    return used(_path_of(BUDGET, f"rows of {_SPENT.format}", name), BudgetFile)


class Shortage:
    """As of ``models.admission.Neighbours``: a file of the runtime directory says that a process waits for memory.

    If the runtime directory cannot be used, no process knows that another waits.
    """

    def __init__(self) -> None:
        self._file: SharedFile | None = None
        self._since = 0.0

    def ask(self) -> None:
        """Notes that this process waits; call it again and again."""
        with contextlib.suppress(*UNUSABLE):
            if self._file is None:
                self._file = used(_shortage_path(), lambda path: SharedFile(path, _WAITS.size))
                self._since = time.monotonic()
            os.pwrite(self._file.file, _WAITS.pack(self._since, time.monotonic(), os.getpid()), 0)

    def settle(self) -> None:
        """Notes that it waits no longer."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(file.file, bytes(_WAITS.size), 0)
            file.leave()

    def asked(self) -> tuple[float, float] | None:
        """Since when another process waits, and when it last said so; None: none does."""
        with contextlib.suppress(*UNUSABLE), FILES.lock:
            path = _shortage_path()
            if path in FILES:  # this process waits itself; and closing the file would end its locks
                return None
            with open(path, "rb") as file:
                mark = file.read(_WAITS.size)
            since, at, process = _WAITS.unpack(mark.ljust(_WAITS.size, b"\0"))
            if process not in (0, os.getpid()) and 0 <= time.monotonic() - at < _FRESH_SECS:
                return since, at
        return None


def _shortage_path() -> str:
    return os.path.join(runtime_directory(make=False), f"memory{SHORTAGE}")


FILES: Registry[str, SharedFile] = Registry()
"""Those that are open in this process, by path; its threads join one after the other, under its lock."""
UNUSABLE = (OSError, ConfigurationError)
"""What is raised where the runtime directory cannot be used."""


def _remove_all() -> None:
    """As the process ends: sessions may still be open, since engines close few of them."""
    for file in FILES.values():
        _remove_unless_used(file.path, file.file)


def _forget() -> None:
    global FILES  # noqa: PLW0603 - a forked child has none of its parent's locks
    FILES = Registry()


atexit.register(_remove_all)
os.register_at_fork(after_in_child=_forget)
