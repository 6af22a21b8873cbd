"""What the operating system offers to keep processes and their memory in order, and what to do where it does not."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
"""Numbers of Linux's prctl(2)."""
_KILLED_FIRST = 500
"""How much likelier than its owner the kernel should choose a host when memory runs out (of 1000)."""
_SCORE = Path("/proc/self/oom_score_adj")
_offered = 0

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def why_no_hosts() -> str | None:
    """Why model hosts cannot run on this machine; None: they can."""
    if not (hasattr(os, "fork") and hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")):
        return f"it needs processes that fork and Unix sockets, which {sys.platform} does not have"
    if not sys.executable:
        return "it needs to start Python, and sys.executable does not say where that is"
    return None


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Has this process sent a signal when its parent ends (Linux: the thread that started it); at once if it has.

    Elsewhere than on Linux only the closing of a socket tells of the parent's end.
    """
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, int(number))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parents end, so that none gets away (Linux only)."""
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1)


def be_killed_first() -> None:
    """Offers this process, before its owner, to a kernel that runs out of memory (Linux only)."""
    global _offered  # noqa: PLW0603 - it is about the process
    with contextlib.suppress(OSError, ValueError):
        before = int(_SCORE.read_text())
        _SCORE.write_text(str(min(1000, before + _KILLED_FIRST)))
        _offered = min(1000, before + _KILLED_FIRST) - before


def offered() -> int:
    """By how much this process is killed before others."""
    return _offered


def take_back(offer: int) -> None:
    """Makes this process one like others, where it has that offer from who started it."""
    with contextlib.suppress(OSError, ValueError):
        if offer:
            _SCORE.write_text(str(int(_SCORE.read_text()) - offer))


def allowed_cores() -> int:
    """How many of the machine's cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_bytes() -> int | None:
    """The most memory that this process has had at a time, in bytes, what it shares with others included."""
    try:
        resource = importlib.import_module("resource")  # which Windows does not have
    except ImportError:
        return None
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def children() -> list[int]:
    """The processes whose parent this one is, ended ones that nobody has waited for included (Linux; else none)."""
    return [process for process in processes() if _parent(process) == os.getpid()]


def processes() -> Iterator[int]:
    """All processes that this one can see (Linux; else none)."""
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def fields_of(process: int) -> list[str]:
    """What /proc says of a process, from its state on: state, parent, ...; empty if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(process: int) -> int | None:
    fields = fields_of(process)
    return int(fields[1]) if fields else None


def anonymous_file(name: str) -> int:
    """A new file without a place in any file system, gone when its last user is.

    Where there is no memfd, a temporary file whose name is removed at once.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def watch(process: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where there is no such thing."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None
