"""Reads /proc, provided that its process ids are those of this process's own PID namespace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal


def pids_are_local(proc: Path = Path("/proc")) -> bool:
    """Whether process ids in /proc mean the same processes as in this process's PID namespace (False except on Linux).

    If /proc was mounted in another PID namespace, its numbers mean other processes here.
    """
    status = lines_of(proc / "self" / "status")
    # NSpid lists this process's id in each namespace, from that of /proc inwards.
    numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), None)
    if numbers is None:  # kernels before 4.1
        numbers = [line.split()[1] for line in status if line.startswith("Pid:")]
    return numbers == [str(os.getpid())]


def children() -> list[int]:
    """Process ids of this process's children, including ended ones not yet waited for (empty except on Linux)."""
    return [process for process in processes() if _parent(process) == os.getpid()]


def processes() -> Iterator[int]:
    """Ids of all visible processes (none except on Linux, or if /proc belongs to another PID namespace)."""
    if pids_are_local():
        with contextlib.suppress(OSError):
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def fields_of(process: int | Literal["self"]) -> list[str]:
    """Fields of a process's ``stat`` file from the third on: state, parent, ...; empty if there is no such process."""
    return "".join(lines_of(Path(f"/proc/{process}/stat"))).rpartition(")")[2].split()


def _parent(process: int) -> int | None:
    fields = fields_of(process)
    return int(fields[1]) if fields else None


def lines_of(path: Path) -> list[str]:
    """Lines of a file; empty if the file or its process does not exist, or this user may not read it."""
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
