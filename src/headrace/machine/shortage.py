"""Tells the processes of this machine that one of them waits for memory, so that others evict models for it."""

from __future__ import annotations

import contextlib
import os
import struct
import time

from headrace.machine import shared_file
from headrace.machine.discovery import runtime_directory
from headrace.machine.shared_file import SHORTAGE, UNUSABLE, SharedFile, sweep

_MARK = struct.Struct("ddq")
"""Since when a process waits, when it last said so, and its id; the times are of the machine's monotonic clock."""
_FRESH_SECS = 1.0
"""A mark that is older is of a process that has ended, or is done waiting."""


class Shortage:
    """As of ``models.admission.Neighbours``: a file of the runtime directory, while a process waits.

    If the runtime directory cannot be used, no process knows that another waits.
    """

    def __init__(self) -> None:
        self._file: SharedFile | None = None
        self._since = 0.0

    def ask(self) -> None:
        """Notes that this process waits; call it again and again."""
        with contextlib.suppress(*UNUSABLE):
            if self._file is None:
                path = _path()
                with shared_file.FILES.lock:
                    sweep(but=path)
                    self._file = shared_file.FILES.open(path, lambda: SharedFile(path, _MARK.size))
                self._since = time.monotonic()
            os.pwrite(self._file.file, _MARK.pack(self._since, time.monotonic(), os.getpid()), 0)

    def settle(self) -> None:
        """Notes that it waits no longer."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(file.file, bytes(_MARK.size), 0)
            with shared_file.FILES.lock:
                if file in shared_file.FILES.values() and shared_file.FILES.close(file.path) is not None:
                    file.close()

    def asked(self) -> tuple[float, float] | None:
        """Since when another process waits, and when it last said so; None: none does."""
        with contextlib.suppress(*UNUSABLE):
            path = _path()
            with shared_file.FILES.lock:
                if path in shared_file.FILES:  # this process waits itself; and closing the file would end its locks
                    return None
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    mark = os.pread(file, _MARK.size, 0)
                finally:
                    os.close(file)
            if len(mark) == _MARK.size:
                since, at, process = _MARK.unpack(mark)
                if process != os.getpid() and 0 <= time.monotonic() - at < _FRESH_SECS:
                    return since, at
        return None


def _path() -> str:
    """The file's path, whether or not it is there."""
    return os.path.join(runtime_directory(make=False), f"memory{SHORTAGE}")
