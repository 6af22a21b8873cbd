"""Operating system calls for processes, with fallbacks; and how those that a killed owner left behind are found.

There are no pid files, which could be left behind themselves: every process of a fork server inherits an environment
variable, the mark, that names the fork server's owner; ``/proc`` is searched for it (Linux only).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple, Protocol
from weakref import WeakSet

from headrace.models.memory import lines_of, pids_are_local

_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
"""Options of Linux's prctl(2)."""
KILLED_FIRST = 500
"""Added to a host's oom_score_adj (at most 1000), so that the kernel kills it before its owner."""
_SCORE = Path("/proc/self/oom_score_adj")
_POLL_SECS = 0.005

MARK = "HEADRACE_HOST_OF"
"""The mark's variable: ``<pid namespace>:<owner's pid>:<owner's start time>:<number of the fork server>``."""

MANAGER = "headrace.machine.manager"
"""The manager's module: a manager outlives the process that launched it, whose mark it may carry."""

_FORM = re.compile(r"(?P<namespace>\d+):(?P<owner>\d+):(?P<start>\d+):\d+", re.ASCII)
_STARTED = 19
"""Index of the start time, in clock ticks since boot, in ``fields_of``, which begins with the state."""
_numbers = count(1)

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


class _Forked(Protocol):
    def after_fork(self) -> None:
        """In a forked child: forgets what belongs to the parent, without disturbing it, and starts afresh."""
        ...


_RESET_IN_FORKS: WeakSet[_Forked] = WeakSet()
reset_in_forks = _RESET_IN_FORKS.add
"""Calls an object's ``after_fork`` in each forked child of this process, as long as the object lives."""


def _reset_after_fork() -> None:
    for one in list(_RESET_IN_FORKS):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def why_no_hosts() -> str | None:
    """The reason why hosts cannot run on this machine; None: they can."""
    if not (hasattr(os, "fork") and hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")):
        return f"it needs processes that fork and Unix sockets, which {sys.platform} does not have"
    if not sys.executable:
        return "it needs to start Python, and sys.executable does not say where that is"
    return None


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Asks for a signal when the parent exits (on Linux: the thread that started this process).

    Exits at once if the parent is gone already. On other systems, only a closed socket tells of the parent's exit.
    """
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, int(number))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parents exit, so that it can reap them (Linux only)."""
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1)


def change_oom_score(by: int) -> None:
    """Changes this process's oom_score_adj (Linux only): out of memory, the kernel kills the highest first."""
    with contextlib.suppress(OSError, ValueError):
        score = int(_SCORE.read_text()) + by
        if score >= 0:
            _SCORE.write_text(str(min(1000, score)))


def allowed_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_ended(child: int, wait_secs: float = 0.0) -> bool:
    """Whether a child exits within ``wait_secs``; it remains a zombie, to be waited for.

    Always False on macOS before Python 3.13, which lacks ``waitid``.

    Raises:
        ChildProcessError: it is no child of this process, or has been waited for.
    """
    if not hasattr(os, "waitid"):
        return False
    deadline = time.monotonic() + wait_secs
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECS)  # waitid takes no deadline, and a sandbox may refuse a pidfd, which could be polled
    return True


def watch(process: int) -> int | None:
    """A descriptor that becomes readable when the process exits (a pidfd); None where the system has none."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def children() -> list[int]:
    """Process ids of this process's children, including ended ones not yet waited for (empty except on Linux)."""
    own = str(os.getpid())
    return [process for process in processes() if fields_of(process)[1:2] == [own]]


def processes() -> Iterator[int]:
    """Ids of all visible processes (none except on Linux, or if /proc belongs to another PID namespace)."""
    if pids_are_local():
        with contextlib.suppress(OSError):
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def fields_of(process: int | Literal["self"]) -> list[str]:
    """Fields of a process's ``stat`` file from the third on: state, parent, ...; empty if there is no such process."""
    return "".join(lines_of(Path(f"/proc/{process}/stat"))).rpartition(")")[2].split()


def new_mark() -> str:
    """A new mark, for the next fork server of this process."""
    fields = fields_of("self")
    return f"{namespace()}:{os.getpid()}:{fields[_STARTED] if fields else ''}:{next(_numbers)}"


class Marked(NamedTuple):
    """A process that carries a mark."""

    process: int
    mark: str
    owner: int
    """Its owner's process id; 0: unknown, such as in another pid namespace."""
    is_orphan: bool
    """Whether its owner is certainly dead."""


def marked() -> Iterator[Marked]:
    """Finds this user's processes that carry a mark."""
    yield from filter(None, map(_marked, processes()))


def kill_marked(mark: str) -> None:
    """Kills every process that carries the mark."""
    _kill(lambda found: found.mark == mark)


def kill_orphans() -> None:
    """Kills every process of this user whose mark names an owner that is no longer alive."""
    _kill(lambda found: found.is_orphan)


def _kill(is_meant: Callable[[Marked], bool]) -> None:
    for process in processes():
        held = watch(process)  # a pidfd refers to one process even after its id is reused
        found = _marked(process)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if found is not None and is_meant(found):
                if held is None:
                    os.kill(process, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(held, signal.SIGKILL)
        if held is not None:
            os.close(held)


def is_manager(process: int) -> bool:
    """Whether the process is a manager."""
    return MANAGER.encode() in _read(process, "cmdline").split(b"\0")


def _marked(process: int) -> Marked | None:
    """What the mark in its initial environment says; None: it has none, or is another user's."""
    prefix = f"{MARK}=".encode()
    marks = [item for item in _read(process, "environ").split(b"\0") if item.startswith(prefix)]
    if not marks:
        return None
    mark = marks[0][len(prefix) :].decode(errors="replace")
    form = _FORM.fullmatch(mark)
    if form is None or form["namespace"] != namespace():  # or made where there is no /proc
        return Marked(process, mark, 0, is_orphan=False)
    owner = int(form["owner"])
    fields = fields_of(owner)
    return Marked(process, mark, owner, not fields or fields[0] in "ZX" or fields[_STARTED] != form["start"])


def _read(process: int, name: str) -> bytes:
    """A file in /proc about a process of this user; empty for any other."""
    try:
        is_own = os.stat(f"/proc/{process}").st_uid == os.getuid()
        return Path(f"/proc/{process}/{name}").read_bytes() if is_own else b""
    except OSError:
        return b""


def namespace() -> str:
    """The id of this process's pid namespace on this machine; empty: unknown."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""
