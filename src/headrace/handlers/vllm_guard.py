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
_POLL_SECS, _PAUSE_SECS = 0.2, 0.02
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Numbers of Linux's prctl(2)."""
_IGNORED = (signal.SIGINT, signal.SIGTERM)

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def main() -> NoReturn:
    """Runs the server until it ends or is ended; exits with its code, or with 128 plus the number of its signal."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1)  # adopt the server's children when it dies
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    server = subprocess.Popen(  # noqa: S603 - the command is the owner's
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    while server.poll() is None and os.getppid() == owner and not select.select([0], [], [], _POLL_SECS)[0]:
        pass
    _end(server)
    code = server.returncode
    os._exit(code if code >= 0 else 128 - code)


def _die_with_parent() -> None:
    """Runs in the server before its program: if the guard is killed, the server is, too."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


def _end(server: subprocess.Popen[bytes]) -> None:
    """Asks the server and its children to end, and kills them after a while; returns when none is left."""
    _send(signal.SIGTERM, server)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_SECS)
    deadline = time.monotonic() + _REST_SECS
    while _are_left(server):  # orphans become this process's children
        if time.monotonic() > deadline:
            _send(signal.SIGKILL, server)
        time.sleep(_PAUSE_SECS)  # no call waits for all of them


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
    """To all children; where the system does not list them, to the server."""
    children = [server.pid] if server.poll() is None else []
    with contextlib.suppress(OSError):
        children = list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


if __name__ == "__main__":
    main()
