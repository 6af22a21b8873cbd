"""Redirects everything that a fork server or host prints and logs to its owner."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from contextlib import suppress

from headrace.hosts.output import lifted, record_line


def redirect_output(printed: int, logged: int, level: int) -> None:
    """Redirects this process's output to its owner's ``OutputReader``.

    Descriptors 1 and 2, ``sys.stdout`` and ``sys.stderr`` (line buffered) go to ``printed``, in child programs, too;
    standard input becomes empty. The root logger gets a single handler, which sends records to ``logged`` as lines of
    JSON; child programs do not inherit that descriptor. Call it in a single-threaded process; it may be repeated.

    Args:
        printed: the reader's ``printed`` descriptor, or a copy of it; stays open.
        logged: the reader's ``logged`` descriptor, or a copy of it; stays open.
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
    """Writes each log record to a pipe as one line of JSON: level, logger name and text."""

    def __init__(self, logged: int) -> None:
        super().__init__()
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(record_line(record.levelno, record.name, self.format(record)))
        except Exception:
            self.handleError(record)  # prints to stderr, like every standard handler

    def _write(self, line: bytes) -> None:
        """Writes a whole line. The handler's lock keeps threads apart, the file lock forked processes."""
        with suppress(OSError):  # some systems cannot lock a pipe
            fcntl.lockf(self._logged, fcntl.LOCK_EX)
        try:
            while line:
                line = line[os.write(self._logged, line) :]
        finally:
            with suppress(OSError):
                fcntl.lockf(self._logged, fcntl.LOCK_UN)
