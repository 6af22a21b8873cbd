"""A program that runs a server, and ends it with everything it started when its owner ends or asks for it.

It is run as a script, with the standard library only: ``python -I -S vllm_guard.py OWNER COMMAND...``. Its standard
input is a pipe from the owner, which may be killed at any moment without cleaning up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

GRACE_SECS = 10.0
"""How long the server may take to end when asked to."""
_REST_SECS = 0.5
"""How long its children may outlive it, so that they can clean up."""
_POLL_MS = 500
_PAUSE_SECS = 0.02
"""Between two looks at adopted children: to wait for any of several, with a deadline, there is no system call."""
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Numbers of Linux's prctl(2)."""

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


class _Ended(BaseException):
    pass


def main() -> NoReturn:
    """Runs the server until it ends or is ended; exits with its code, or with 128 plus the number of its signal."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1)  # adopt the server's children when it dies
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise)
    server: subprocess.Popen[bytes] | None = None
    with contextlib.suppress(_Ended):
        server = subprocess.Popen(  # noqa: S603 - the command is the owner's
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        _wait(server, owner)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_children(server)
    code = server.returncode if server is not None and server.returncode is not None else 0
    os._exit(code if code >= 0 else 128 - code)


def _wait(server: subprocess.Popen[bytes], owner: int) -> None:
    """Waits until the server has ended, or its owner has ended or asks for it."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    for process in (server.pid, owner):  # without pidfds, the loop below looks twice a second
        with contextlib.suppress(AttributeError, OSError):
            poll.register(os.pidfd_open(process), select.POLLIN)
    while server.poll() is None and os.getppid() == owner:
        if any(file == 0 for file, _ in poll.poll(_POLL_MS)):
            return


def _end_children(server: subprocess.Popen[bytes] | None) -> None:
    """Asks the server and its children to end, and kills them after a while; returns when none is left."""
    deadline = time.monotonic() + GRACE_SECS
    _send(signal.SIGTERM, server)
    if server is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_SECS)
    deadline = min(deadline, time.monotonic() + _REST_SECS)
    while _are_left() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECS)  # descendants that are not yet this process's children: no call waits for their end
    while not _has_ended(server) or (_are_left() and _children()):
        _send(signal.SIGKILL, server)  # orphans of killed processes become children, too
        time.sleep(_PAUSE_SECS)  # no call waits for the end of all of them


def _has_ended(server: subprocess.Popen[bytes] | None) -> bool:
    return server is None or server.poll() is not None


def _are_left() -> bool:
    """Whether there are children; reaps those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _send(number: signal.Signals, server: subprocess.Popen[bytes] | None) -> None:
    children = _children() or ([server.pid] if server is not None and not _has_ended(server) else [])
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _children() -> list[int]:
    """This process's children, from /proc (Linux; elsewhere none)."""
    found = []
    for name in os.listdir("/proc") if _numbers_are_ours() else []:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _numbers_are_ours() -> bool:
    """Whether /proc belongs to this PID namespace; in that of an outer one, ids would be other processes'."""
    status = dict.fromkeys(("NSpid:", "Pid:"), "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, numbers = line.partition("\t")
            status[name] = numbers
    return (status["NSpid:"] or status["Pid:"]) == str(os.getpid())


def _die_with_parent() -> None:
    """Runs in the server before its program: if the guard is killed, the server is, too."""
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


def _raise(*_: object) -> NoReturn:
    raise _Ended


if __name__ == "__main__":
    main()
