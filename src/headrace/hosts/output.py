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
from contextlib import ExitStack, suppress

_PRINTS = "headrace.host"
_READ_BYTES = 64 * 1024
"""What a pipe holds, on Linux: one read drains it at close."""
_LONGEST_TEXT = 64 * 1024
"""Characters of a log record; JSON may take six bytes for each."""
_LONGEST_LINE = 8 * _LONGEST_TEXT
"""Bytes after which a line is split."""
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
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"headrace output of {name}", daemon=True)
        with ExitStack() as undo:
            self._files = [
                undo.enter_context(open(end, mode, buffering=0))
                for _ in range(2)
                for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
            ]
            self._printed_read, self.printed, self._logged_read, self.logged = (one.fileno() for one in self._files)
            self._thread.start()
            undo.pop_all()
        atexit.register(self.close, 0.0)  # a thread that logs during interpreter shutdown may abort the process

    def release(self) -> None:
        """Closes this process's write ends, once the fork server has its own copies."""
        for file in self._files[1::2]:
            file.close()

    def close(self, timeout_secs: float = 1.0) -> None:
        """Passes on everything written so far, ends the thread and closes every descriptor.

        Args:
            timeout_secs: how long to wait for other processes to close their write ends. If the owner's logging blocks,
                this waits another 0.5 s, and the thread ends later.
        """
        atexit.unregister(self.close)
        self.release()
        is_elsewhere = threading.current_thread() is not self._thread  # a garbage collection may close on any thread
        if is_elsewhere:
            self._thread.join(timeout_secs)
        self._is_closing = True
        if is_elsewhere:
            self._thread.join(_LAST_SECS)
        if not self._thread.is_alive():  # in a forked child, too: the thread is the parent's
            self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            file.close()

    def _run(self) -> None:
        pass_on = {self._logged_read: self._pass_on_record, self._printed_read: self._pass_on_print}
        unfinished = dict.fromkeys(pass_on, b"")
        poll = select.poll()
        for file in pass_on:
            poll.register(file, select.POLLIN)
        open_ends, is_last = set(pass_on), False
        while open_ends and not is_last:
            is_last = self._is_closing
            for file, _ in poll.poll(_TICK_MS):
                data = os.read(file, _READ_BYTES)
                *lines, rest = (unfinished[file] + data).split(b"\n")
                if len(rest) >= _LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    pass_on[file](line)
                unfinished[file] = rest
                if not data:
                    poll.unregister(file)
                    open_ends.remove(file)
        for file, rest in unfinished.items():
            if rest:
                pass_on[file](rest)
        self._close_files()

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


def redirect_output(printed: int, logged: int) -> None:
    """Host's side: redirects everything that this process prints and logs to its owner's ``OutputReader``.

    Descriptors 1 and 2, ``sys.stdout`` and ``sys.stderr`` (line buffered) go to ``printed``, in child programs, too.
    The root logger gets a single handler, which sends records to ``logged`` as lines of JSON; child programs do not
    inherit that descriptor. Call it in a single-threaded process.

    Args:
        printed: a copy of the reader's ``printed`` descriptor; is closed.
        logged: a copy of the reader's ``logged`` descriptor; is closed.
    """
    target, sink = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (printed, logged))
    os.close(printed)
    os.close(logged)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(target, number)
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - stays open
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.close(target)
    logging.root.handlers[:] = [_RecordSender(sink)]


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
