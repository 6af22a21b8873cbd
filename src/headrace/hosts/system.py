"""What the operating system offers to keep processes and their memory in order, and what to do where it does not."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
"""Numbers of Linux's prctl(2)."""
_KILLED_FIRST = 500
"""How much likelier than its owner the kernel should choose a host when memory runs out (of 1000)."""
_SCORE = Path("/proc/self/oom_score_adj")
_POLL_SECS = 0.005
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


def has_ended(child: int, wait_secs: float = 0.0) -> bool:
    """Whether a child of this process has ended, now or within that time; it is still to be waited for.

    On macOS before Python 3.13, which cannot tell, it has not.

    Raises:
        ChildProcessError: it is no child of this process, or has been waited for.
    """
    if not hasattr(os, "waitid"):
        return False
    deadline = time.monotonic() + wait_secs
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECS)
    return True


def kill(process: int, is_meant: Callable[[int], bool]) -> None:
    """Kills a process that ``is_meant`` recognises, and no other that has its number by then."""
    held = watch(process)  # from here on it is one process, whatever becomes of its number
    try:
        if not is_meant(process):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if held is None or not _sent(held):
                os.kill(process, signal.SIGKILL)
    finally:
        if held is not None:
            os.close(held)


def _sent(held: int) -> bool:
    """Kills the process of a descriptor; False: the system has the call not, or forbids it."""
    try:
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except OSError as error:
        return error.errno == errno.ESRCH
    return True


def watch(process: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where there is no such thing."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None
