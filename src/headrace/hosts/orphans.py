"""Finds and ends processes whose owner was killed before it could see to them itself.

No file is kept for this, which could itself be left behind: whatever a fork server starts inherits a variable in its
environment that names the owner, and the kernel's list of processes is the register (Linux only).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.hosts.system import kill
from headrace.models.procfs import fields_of, processes

MARK = "HEADRACE_HOST_OF"
"""Of the form ``<pid namespace>:<owner's pid>:<owner's start time>:<number of the fork server>``."""

MANAGER = "headrace.machine.manager"
"""The program that has the machine's models: it outlives whatever has started it."""

_FORM = re.compile(r"(?P<namespace>\d*):(?P<owner>\d+):(?P<start>\d*):\d+", re.ASCII)
_STARTED = 19
"""Where a process's start time stands in what the kernel says of it."""
_numbers = count(1)


def new_mark() -> str:
    """For another fork server of this process."""
    return f"{namespace()}:{os.getpid()}:{_start('self') or ''}:{next(_numbers)}"


def end_marked(mark: str) -> None:
    """Kills every process that carries the mark."""
    for process in processes():
        if _mark_of(process) == mark:
            kill(process, lambda process: _mark_of(process) == mark)


def end_orphans() -> None:
    """Kills every process of this user that carries the mark of an owner that no longer lives."""
    for one in marked():
        if one.is_orphan:
            kill(one.process, _is_orphan)


def _is_orphan(process: int) -> bool:
    mark = _mark_of(process)
    return mark is not None and not _owner_lives(mark)


class Marked(NamedTuple):
    """A process that carries a mark."""

    process: int
    owner: int
    """Its owner's process id; 0 if that cannot be known here."""
    is_orphan: bool
    """Whether its owner no longer lives."""


def marked() -> Iterator[Marked]:
    """The processes of this user that carry a mark."""
    for process in processes():
        mark = _mark_of(process)
        if mark is not None:
            owner = _owner_of(mark)
            yield Marked(process, int(owner["owner"]) if owner else 0, not _owner_lives(mark))


def is_manager(process: int) -> bool:
    """Whether that is a manager of the machine's models."""
    try:
        return MANAGER.encode() in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _mark_of(process: int) -> str | None:
    """Read from the environment with which the process's program was started; only one's own can be read."""
    try:
        if os.stat(f"/proc/{process}").st_uid != os.getuid():
            return None
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    found = next((item for item in environment.split(b"\0") if item.startswith(prefix)), None)
    return found[len(prefix) :].decode(errors="replace") if found is not None else None


def _owner_lives(mark: str) -> bool:
    """Whether the owner lives; one of which nothing can be known here counts as living."""
    owner = _owner_of(mark)
    return owner is None or _start(int(owner["owner"])) in (owner["start"], None)


def _owner_of(mark: str) -> re.Match[str] | None:
    """Who the mark says; None: it has another form, or is of another namespace, or of an owner without /proc."""
    found = _FORM.fullmatch(mark)
    return found if found and found["start"] and found["namespace"] == namespace() else None


def _start(process: int | Literal["self"]) -> str | None:
    """When a process started; empty: it has ended; None: that cannot be known."""
    fields = fields_of(process)
    if fields:
        return "" if fields[0] in "ZX" else fields[_STARTED]
    return "" if process != "self" and _is_gone(process) else None


def _is_gone(process: int) -> bool:
    """Whether there is no such process, nor one that /proc hides."""
    with contextlib.suppress(PermissionError):
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return True
    return False


def namespace() -> str:
    """Names this process's PID namespace, among those of the machine; empty where that is not known."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""
