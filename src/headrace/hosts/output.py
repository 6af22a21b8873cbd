"""Passes what a model's hosts print and log to the logging of their owner, line by line."""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

_PRINTS = "headrace.host"
_READ_BYTES = 8 * 1024
"""So few that a flood of short lines does not keep the thread from what else there is."""
_LONGEST_TEXT = 64 * 1024
"""Characters of a log record; JSON may take six bytes for each."""
_LONGEST_LINE = 8 * _LONGEST_TEXT
"""Bytes after which a line is split."""
_LAST_BYTES = 64 * 1024
"""What a pipe holds, on Linux: it is drained at close."""
_LAST_SECS = 0.5
_TICK_MS = 200
"""How soon the thread notices that it is to end."""


class OutputReader:
    """Owner's side: reads what a model's hosts print and log, on its own daemon thread.

    Printed lines go to the logger ``headrace.host`` at INFO, log records to the logger of their name at their level,
    each prefixed with the model's name. A host that prints faster than the owner logs waits.

    Args:
        name: the model's name.
        log: called instead of this process's logging, with logger name, level and text.

    Raises:
        OSError: too many files are open.
    """

    def __init__(self, name: str, log: Callable[[str, int, str], None] | None = None) -> None:
        self.name = name
        self._log_here = log or self._log_to_logger
        self._process = os.getpid()
        self._is_closing = False
        self._open: set[int] = set()
        """Open descriptors. Remove one before closing it, so that no thread closes a reused number."""
        self._thread = threading.Thread(target=self._run, name=f"headrace output of {name}", daemon=True)
        try:
            self._printed_read, self.printed = self._pipe()
            self._logged_read, self.logged = self._pipe()
            self._thread.start()
        except BaseException:
            self._close(*self._open)
            raise
        atexit.register(self.close, 0.0)  # a thread that logs during interpreter shutdown may abort the process

    def release(self) -> None:
        """Closes this process's write ends, once the fork server has its own copies."""
        self._close(self.printed, self.logged)

    def close(self, timeout_secs: float = 1.0) -> None:
        """Passes on everything written so far, ends the thread and closes every descriptor.

        Args:
            timeout_secs: how long to wait for other processes to close their write ends. If the owner's logging blocks,
                this waits another 0.5 s, and the thread ends later.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._process:  # a forked child: the thread is the parent's
            self._close(*self._open)
            return
        self.release()
        is_elsewhere = threading.current_thread() is not self._thread  # a garbage collection may close on any thread
        if is_elsewhere:
            self._thread.join(timeout_secs)
        self._is_closing = True
        if is_elsewhere:
            self._thread.join(_LAST_SECS)

    def _pipe(self) -> tuple[int, int]:
        read, write = os.pipe()
        self._open.update((read, write))
        os.set_blocking(read, False)
        return read, write

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            with suppress(KeyError):
                self._open.remove(descriptor)
                os.close(descriptor)

    def _run(self) -> None:
        pass_on = {self._logged_read: self._pass_on_record, self._printed_read: self._pass_on_print}
        unfinished = dict.fromkeys(pass_on, b"")
        poll = select.poll()
        for file in pass_on:
            poll.register(file, select.POLLIN)
        is_last = False
        while unfinished and not is_last:
            is_last = self._is_closing
            for file, _ in poll.poll(_TICK_MS):
                data = os.read(file, _LAST_BYTES if is_last else _READ_BYTES)
                *lines, rest = (unfinished[file] + data).split(b"\n")
                if is_last or not data or len(rest) >= _LONGEST_LINE:
                    lines, rest = [*lines, *filter(None, [rest])], b""
                for line in lines:
                    pass_on[file](line)
                unfinished[file] = rest
                if not data:
                    poll.unregister(file)
                    del unfinished[file]
        for file, rest in unfinished.items():
            if rest:
                pass_on[file](rest)
        self._close(self._printed_read, self._logged_read)

    def _pass_on_print(self, line: bytes) -> None:
        last = line.rstrip(b"\r").rpartition(b"\r")[2]  # a progress bar's final state
        self._log(_PRINTS, logging.INFO, last.decode("utf-8", "backslashreplace"))

    def _pass_on_record(self, line: bytes) -> None:
        try:
            level, logger, text = json.loads(line)
        except (ValueError, TypeError, RecursionError):  # a program that inherited the pipe wrote something else
            self._pass_on_print(line)
        else:
            self._log(str(logger), level if isinstance(level, int) else logging.INFO, str(text))

    def _log_to_logger(self, logger: str, level: int, text: str) -> None:
        logging.getLogger(logger).log(level, "%s: %s", self.name, text)

    def _log(self, logger: str, level: int, text: str) -> None:
        try:
            self._log_here(logger, level, text)
        except BaseException:  # this thread must survive any logging handler: hosts would block on an unread pipe
            with suppress(Exception):
                traceback.print_exc()


def record_line(level: int, logger: str, text: str) -> bytes:
    """Encodes a log record for an ``OutputReader``'s pipe of records; a long one loses its middle."""
    half = _LONGEST_TEXT // 2
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:half]}\n... ({len(text) - 2 * half:,} more characters) ...\n{text[-half:]}"
    return f"{json.dumps([level, logger, text])}\n".encode()


def redirect_output(printed: int, logged: int, level: int) -> None:
    """Host's side: redirects everything that this process prints and logs to its owner's ``OutputReader``.

    Descriptors 1 and 2, ``sys.stdout`` and ``sys.stderr`` (line buffered) go to ``printed``, in child programs, too;
    standard input becomes empty. The root logger gets a single handler, which sends records to ``logged`` as lines of
    JSON; child programs do not inherit that descriptor. Call it in a single-threaded process.

    Args:
        printed: the reader's ``printed`` descriptor, or a copy of it; is closed.
        logged: the reader's ``logged`` descriptor, or a copy of it; is closed.
        level: the root logger's new level.
    """
    target, sink = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (printed, logged))
    os.close(printed)
    os.close(logged)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source, name in ((0, nothing, "stdin"), (1, target, "stdout"), (2, target, "stderr")):
        os.dup2(source, number)
        mode, buffering = ("w", 1) if number else ("r", -1)
        stream = open(number, mode, buffering, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - stays open
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.close(target)
    if nothing > 2:
        os.close(nothing)
    logging.root.handlers[:] = [_RecordSender(sink)]
    logging.root.setLevel(level)


class _RecordSender(logging.Handler):
    """Writes each log record to a pipe as one line of JSON: level, logger name and text."""

    def __init__(self, logged: int) -> None:
        super().__init__()
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a whole line. The handler's lock keeps threads apart, the file lock forked processes."""
        try:
            line = record_line(record.levelno, record.name, self.format(record))
            with suppress(OSError):  # some systems cannot lock a pipe
                fcntl.lockf(self._logged, fcntl.LOCK_EX)
            while line:
                line = line[os.write(self._logged, line) :]
        except Exception:
            self.handleError(record)  # prints to stderr, like every standard handler
        finally:
            with suppress(OSError):
                fcntl.lockf(self._logged, fcntl.LOCK_UN)
