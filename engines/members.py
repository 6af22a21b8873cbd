"""The processes of a cluster: each of ours in a group of its own, and all that they start found by a mark (Linux).

The mark is a variable of the environment, which whatever they start inherits: worker processes, managers of the
machine's models, model hosts. So nothing is lost sight of when its parent is killed, nor when a file of pids is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

MARK = "HEADRACE_ENGINE"
_PATIENCE_SECS = 10.0
_POLL_SECS = 0.05
_started: list[subprocess.Popen[bytes]] = []
"""By this process."""


def start(command: Sequence[str], mark: str, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process in a group of its own, which outlives this one."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, MARK: mark},
            start_new_session=True,
        )
    _started.append(process)
    return process


def members(mark: str) -> list[int]:
    """The ids of all processes that carry the mark."""
    for process in _started:
        process.poll()  # only its parent can reap it
    return [pid for pid in _processes() if _variable(pid, MARK) == mark]


def ended(process: int) -> bool:
    """Whether a process of a known id has ended; while it becomes another program (exec), it carries no mark."""
    for child in _started:
        child.poll()
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def end_all(mark: str) -> int:
    """Ends them all: asks first, then kills; returns how many there were.

    Raises:
        TimeoutError: some do not go.
    """
    seen: set[int] = set()
    for number, patience in ((signal.SIGTERM, _PATIENCE_SECS), (signal.SIGKILL, _PATIENCE_SECS)):
        deadline = time.monotonic() + patience
        asked: set[int] = set()
        while left := members(mark):
            seen.update(left)
            for process in set(left) - asked if number == signal.SIGTERM else left:  # what is new is told as well
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            asked.update(left)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECS)
        if not left:
            return len(seen)
    raise TimeoutError(f"these processes do not end, though they were killed: {left}.")


def wait_until(condition: Callable[[], bool], secs: float) -> bool:
    """Whether the condition comes true within so many seconds."""
    deadline = time.monotonic() + secs
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECS)
    return True


def _processes() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _variable(process: int, name: str) -> str | None:
    """Of the environment with which the process was started; None: it has none, is a zombie, or another user's."""
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{name}=".encode()
    found = (item[len(prefix) :] for item in environment.split(b"\0") if item.startswith(prefix))
    return next((value.decode(errors="replace") for value in found), None)
