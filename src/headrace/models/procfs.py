"""What /proc says of processes, as far as the numbers there are those by which this process knows them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal


def numbers_are_ours(proc: Path = Path("/proc")) -> bool:
    """Whether the numbers that /proc gives processes are those by which this one knows them (Linux; else not).

    In a PID namespace whose /proc is still that of another namespace, a number there is another process's here.
    """
    status = lines_of(proc / "self" / "status")
    numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), None)  # in each, from proc's on
    if numbers is None:  # a kernel before 4.1
        numbers = [line.split()[1] for line in status if line.startswith("Pid:")]
    return numbers == [str(os.getpid())]


def children() -> list[int]:
    """The processes whose parent this one is, ended ones that nobody has waited for included (Linux; else none)."""
    return [process for process in processes() if _parent(process) == os.getpid()]


def processes() -> Iterator[int]:
    """All processes that this one can see (Linux; else none), unless their numbers are another namespace's."""
    if numbers_are_ours():
        with contextlib.suppress(OSError):
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def fields_of(process: int | Literal["self"]) -> list[str]:
    """What /proc says of a process, from its state on: state, parent, ...; empty if there is no such process."""
    return "".join(lines_of(Path(f"/proc/{process}/stat"))).rpartition(")")[2].split()


def _parent(process: int) -> int | None:
    fields = fields_of(process)
    return int(fields[1]) if fields else None


def lines_of(path: Path) -> list[str]:
    """None, if the file or its process is not there, or not for this user."""
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
