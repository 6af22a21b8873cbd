"""The host's side of its output: everything that it prints and logs goes to its owner."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from contextlib import suppress

from headrace.hosts.output import lifted, record_line


def redirect_output(printed: int, logged: int, level: int) -> None:
    """Host's (or fork server's) side: from now on everything that this process prints and logs goes to its owner.

    File descriptors 1 and 2, ``sys.stdout`` and ``sys.stderr`` (line buffered) go to ``printed``, so do those of
    programs that are started from here; standard input is empty. The root logger's only handler sends records to
    ``logged``, one JSON line each, which those programs do not inherit. For a process of one thread; may be repeated.

    Args:
        printed: the descriptor of an ``OutputReader``, or a copy of it; stays open.
        logged: likewise.
        level: the root logger's new level.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or None
            stream.flush()
    target, sink, nothing = (lifted(number) for number in (printed, logged, os.open(os.devnull, os.O_RDONLY)))
    for source, number in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(source, number)
    for copy in {nothing, target} - {printed}:
        os.close(copy)
    _replace_streams()
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    logging.root.addHandler(_RecordSender(sink))
    logging.root.setLevel(level)


def _replace_streams() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, buffering = ("w", 1) if number else ("r", -1)
        stream = open(number, mode, buffering, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - stays open
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _RecordSender(logging.Handler):
    """Sends log records through a pipe: level, logger's name and text as one line of JSON."""

    def __init__(self, logged: int) -> None:
        super().__init__()
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(record_line(record.levelno, record.name, self.format(record)))
        except Exception:
            self.handleError(record)  # prints on stderr, as every handler of Python's does

    def _write(self, line: bytes) -> None:
        """Writes all of a line; threads wait for each other before, forks of this process here."""
        with suppress(OSError):  # not every system can lock a pipe
            fcntl.lockf(self._logged, fcntl.LOCK_EX)
        try:
            while line:
                line = line[os.write(self._logged, line) :]
        finally:
            with suppress(OSError):
                fcntl.lockf(self._logged, fcntl.LOCK_UN)
