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
_POLL_MS = 200
_PAUSE_SECS = 0.02
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Numbers of Linux's prctl(2)."""

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def main() -> NoReturn:
    """Runs the server until it ends or is ended; exits with its code, or with 128 plus the number of its signal."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1)  # adopt the server's children when it dies
    asked: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    server = subprocess.Popen(  # noqa: S603 - the command is the owner's
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while server.poll() is None and os.getppid() == owner and not asked and not poll.poll(_POLL_MS):
        pass
    _end(server)
    code = server.returncode
    os._exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    """Runs in the server before its program: if the guard is killed, the server is, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


def _end(server: subprocess.Popen[bytes]) -> None:
    """Asks the server and its children to end, and kills them after a while; returns when none is left."""
    _send(signal.SIGTERM, server)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_SECS)
    deadline = time.monotonic() + _REST_SECS
    while _are_left(server):  # orphans become this process's children; no call waits for all of them
        if time.monotonic() > deadline:
            _send(signal.SIGKILL, server)
        time.sleep(_PAUSE_SECS)


def _are_left(server: subprocess.Popen[bytes]) -> bool:
    """Whether there are children; reaps those that have ended."""
    if server.poll() is None:
        return True
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _send(number: signal.Signals, server: subprocess.Popen[bytes]) -> None:
    for child in _children() or ([server.pid] if server.poll() is None else []):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _children() -> list[int]:
    """This process's children; none where /proc does not list the processes of its PID namespace."""
    found = []
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") == str(os.getpid()):
            for name in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError, IndexError):
                    if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                        found.append(int(name))
    return found


if __name__ == "__main__":
    main()
