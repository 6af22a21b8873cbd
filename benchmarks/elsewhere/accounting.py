"""Adds up what a command and all that it starts take: ``elsewhere.accounting REPORT LIMIT SAMPLING COMMAND``.

Processes that lose their parent come to this one (Linux), so nobody's CPU time is missed, and what outlives the command
is seen. The report is JSON: see ``Account``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FAREWELL_SECS = 5.0
"""What is still there so long after the command's end is left behind."""

_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Account:
    """What a command took."""

    code: int | None = None
    """Its exit code; None when it was killed at the limit."""
    cpu_seconds: float = 0.0
    left_behind: int = 0
    """Processes that outlived it and had to be killed."""
    samples: list[tuple[int, int]] = field(default_factory=list)
    """Monotonic time (nanoseconds) and proportional set size (bytes) of all processes."""


def main(report: str, limit_secs: str, sampling_secs: str, *command: str) -> None:
    """Runs the command.

    Args:
        report: file for the account.
        limit_secs: after so long it is killed.
        sampling_secs: between two looks at the memory; 0: none. One takes some 15 ms for each GB of each process,
            not counted in the CPU time, and holds up whoever wants memory meanwhile.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    account = Account()
    _watch(subprocess.Popen(command, stdin=subprocess.DEVNULL), account, float(limit_secs), float(sampling_secs))
    account.left_behind = _kill_all()
    list(_ended())  # whose CPU time counts only now
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    account.cpu_seconds = used.ru_utime + used.ru_stime
    Path(report).write_text(json.dumps(asdict(account)), encoding="utf-8")


def _watch(process: subprocess.Popen[bytes], account: Account, limit_secs: float, sampling_secs: float) -> None:
    """Until the process has ended, and a little longer for those that it leaves."""
    end = time.monotonic() + limit_secs
    while time.monotonic() < end:
        for pid, code in _ended():
            if pid == process.pid:
                account.code = process.returncode = code
                end = time.monotonic() + _FAREWELL_SECS
        if account.code is not None and not find_descendants():
            return
        if account.code is None and sampling_secs:
            account.samples.append((time.monotonic_ns(), sum(map(pss, find_descendants()))))
        time.sleep(sampling_secs if account.code is None and sampling_secs else 0.05)


def _ended() -> Iterator[tuple[int, int]]:
    """Children that have ended since, with their exit codes."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found[0], os.waitstatus_to_exitcode(found[1])


def _kill_all() -> int:
    """Kills all remaining descendants; returns how many there were at first."""
    left = len(find_descendants())
    while descendants := find_descendants():
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        list(_ended())
    return left


def find_descendants() -> list[int]:
    """Of this process; those that have ended and await their parent are not among them."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(folder.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def pss(pid: int) -> int:
    """A process's own memory and its share of what it has in common with others, in bytes; 0 when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
