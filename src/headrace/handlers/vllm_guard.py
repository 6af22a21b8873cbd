"""A program that runs a server and ends it, and whatever it has started, when the server's owner is gone or says so.

Started as a file of its own, with nothing but the standard library: ``python -I -S vllm_guard.py OWNER COMMAND...``.
Its standard input is a pipe from the owner, which may be killed at any moment without being able to see to anything.
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
"""How long the server has to end by itself when asked to."""
_REST_SECS = 0.5
"""How long what it has started may outlive it: some of that tidies up."""
_POLL_MS = 500
_PAUSE_SECS = 0.02
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Numbers of Linux's prctl(2)."""

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


class _Ended(BaseException):
    pass


def main() -> NoReturn:
    """Runs the server until it ends, or must; exits as it did, with 128 and the signal's number if by a signal."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1)  # what the server starts must not get away when the server dies
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
    """Until the server has ended, or its owner has, or has said that it should."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    for process in (server.pid, owner):  # where there is no such thing, looking twice a second will do
        with contextlib.suppress(AttributeError, OSError):
            poll.register(os.pidfd_open(process), select.POLLIN)
    while server.poll() is None and os.getppid() == owner:
        if any(file == 0 for file, _ in poll.poll(_POLL_MS)):
            return


def _end_children(server: subprocess.Popen[bytes] | None) -> None:
    """Asks the server to end, and after a while makes it, and all that it has started; returns when none is left."""
    deadline = time.monotonic() + GRACE_SECS
    _send(signal.SIGTERM, server)
    while not _has_ended(server) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECS)
    deadline = min(deadline, time.monotonic() + _REST_SECS)
    while _are_left() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECS)
    while not _has_ended(server) or (_are_left() and _children()):
        _send(signal.SIGKILL, server)  # orphans of what is killed become children, too
        time.sleep(_PAUSE_SECS)


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
    """The processes whose parent this one is (Linux; else none), as far as /proc has their numbers here."""
    found = []
    for name in os.listdir("/proc") if _numbers_are_ours() else []:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _numbers_are_ours() -> bool:
    """Whether /proc is there, and of this PID namespace: an outer one has other numbers, which are strangers' here."""
    status = dict.fromkeys(("NSpid:", "Pid:"), "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, numbers = line.partition("\t")
            status[name] = numbers
    return (status["NSpid:"] or status["Pid:"]) == str(os.getpid())


def _die_with_parent() -> None:
    """In the server, before its program runs: should this guard be killed, so is the server."""
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


def _raise(*_: object) -> NoReturn:
    raise _Ended


if __name__ == "__main__":
    main()
