"""Finds and kills processes that a killed owner left behind (Linux only).

There are no pid files, which could be left behind themselves: every process of a fork server inherits an environment
variable, the mark, that names the fork server's owner; ``/proc`` is searched for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from headrace.hosts.system import fields_of, kill, processes

MARK = "HEADRACE_HOST_OF"
"""The mark's variable: ``<pid namespace>:<owner's pid>:<owner's start time>:<number of the fork server>``."""

MANAGER = "headrace.machine.manager"
"""The manager's module: a manager outlives the process that launched it, whose mark it may carry."""

_FORM = re.compile(r"(?P<namespace>\d+):(?P<owner>\d+):(?P<start>\d+):\d+", re.ASCII)
_STARTED = 19
"""Index of the start time, in clock ticks since boot, in ``fields_of``, which begins with the state."""
_numbers = count(1)


def new_mark() -> str:
    """A new mark, for the next fork server of this process."""
    fields = fields_of("self")
    return f"{namespace()}:{os.getpid()}:{fields[_STARTED] if fields else ''}:{next(_numbers)}"


def kill_marked(mark: str) -> None:
    """Kills every process that carries the mark."""
    for process in processes():
        if _mark_of(process) == mark:
            kill(process, lambda process: _mark_of(process) == mark)


def kill_orphans() -> None:
    """Kills every process of this user whose mark names an owner that is no longer alive."""
    for one in marked():
        if one.is_orphan:
            kill(one.process, lambda process: _is_orphan(_mark_of(process)))


class Marked(NamedTuple):
    """A process that carries a mark."""

    process: int
    owner: int
    """Its owner's process id; 0: unknown, such as in another pid namespace."""
    is_orphan: bool
    """Whether its owner is certainly dead."""


def marked() -> Iterator[Marked]:
    """Finds this user's processes that carry a mark."""
    for process in processes():
        mark = _mark_of(process)
        if mark is not None:
            owner = _owner_of(mark)
            yield Marked(process, int(owner["owner"]) if owner else 0, _is_orphan(mark))


def is_manager(process: int) -> bool:
    """Whether the process is a manager."""
    try:
        return MANAGER.encode() in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _mark_of(process: int) -> str | None:
    """The mark in a process's initial environment; None: no mark, or another user's process."""
    try:
        if os.stat(f"/proc/{process}").st_uid != os.getuid():
            return None
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    found = next((item for item in environment.split(b"\0") if item.startswith(prefix)), None)
    return found[len(prefix) :].decode(errors="replace") if found is not None else None


def _is_orphan(mark: str | None) -> bool:
    """Whether the mark's owner is certainly dead."""
    owner = None if mark is None else _owner_of(mark)
    if owner is None:
        return False
    fields = fields_of(int(owner["owner"]))
    return not fields or fields[0] in "ZX" or fields[_STARTED] != owner["start"]


def _owner_of(mark: str) -> re.Match[str] | None:
    """Parses a mark; None: malformed, from another pid namespace, or made where there is no /proc."""
    found = _FORM.fullmatch(mark)
    return found if found and found["namespace"] == namespace() else None


def namespace() -> str:
    """The id of this process's pid namespace on this machine; empty: unknown."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""
