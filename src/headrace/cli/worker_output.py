"""Filters what Beam's worker processes print.

They write all that is logged in them, from INFO on, to this process's standard error. Most of it is for developers of
Beam; a handler's warnings, prints and crashes are for the user.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RECORD = re.compile(rb"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([\w.]+):(.*)")
_OF_BEAM = (b"apache_beam", b"__main__")
"""Beginnings of loggers' names; the main module of a worker is Beam's."""
_OF_BEAM_BY_ROOT = (b"apitools", b"Could not get signature", b"Make sure that locally built Python SDK")
"""Beginnings of messages that Beam logs without a name."""
_BEGINS_TRACEBACK = (b"Traceback (", b"During handling of", b"The above exception")
_PATIENCE_SECONDS = 1.0


class WorkerLines:
    """Decides which lines are shown; used by one thread."""

    def __init__(self) -> None:
        self._after_noise = False
        self._in_traceback = False

    def keeps(self, line: bytes) -> bool:
        """Whether a line is shown; the traceback that belongs to a record shares its fate."""
        record = _RECORD.match(line)
        if record:
            self._after_noise, self._in_traceback = _is_noise(*record.groups()), False
        elif self._after_noise and line.startswith(_BEGINS_TRACEBACK):
            self._in_traceback = True
        elif self._after_noise and line.strip() and not (self._in_traceback and line.startswith(b" ")):
            self._after_noise = self._in_traceback  # the line behind the frames is the exception
            self._in_traceback = False
        return not self._after_noise


def _is_noise(level: bytes, logger: bytes, message: bytes) -> bool:
    if level in (b"DEBUG", b"INFO") or logger.startswith(_OF_BEAM):
        return True
    return logger == b"root" and message.startswith(_OF_BEAM_BY_ROOT)


@contextmanager
def without_noise() -> Iterator[None]:
    """While the context is open, processes that are started write to standard error only what is no noise."""
    reader, writer = os.pipe()
    error, ours = os.dup(2), sys.stderr
    thread = threading.Thread(target=_pass_on, args=(reader, error), name="headrace-worker-output", daemon=True)
    thread.start()
    with os.fdopen(os.dup(error), "w", encoding="utf-8", errors="backslashreplace", buffering=1) as direct:
        if ours is sys.__stderr__:  # else it does not write to the descriptor
            sys.stderr.flush()
            sys.stderr = direct
        os.dup2(writer, 2)
        os.close(writer)
        try:
            yield
        finally:
            os.dup2(error, 2)
            sys.stderr = ours
    thread.join(_PATIENCE_SECONDS)  # a worker that is about to end may still have the pipe


def _pass_on(reader: int, error: int) -> None:
    lines = WorkerLines()
    with os.fdopen(reader, "rb") as pipe, os.fdopen(error, "wb", buffering=0) as out:
        for line in pipe:
            if lines.keeps(line):
                out.write(line)
