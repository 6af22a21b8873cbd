"""Passes what a model's hosts print and log to the logging of their owner, with limits on volume and memory."""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import re
import selectors
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

from headrace.core.clock import Clock, SystemClock

_PRINTS = logging.getLogger("headrace.host")

_SECOND = 1_000_000_000
_LINES_A_SECOND = 1_000
_LINE_BYTES = 64 * 1024
_RECORD_BYTES = 8 * _LINE_BYTES
"""Longest line on the pipe of log records: JSON may take six bytes per character."""
_PIPE_BYTES = 256 * 1024
"""Room for bursts. Linux limits all pipes of a user together to 64 MB."""
_READS = 16
"""How often one pipe is read before the other's turn; at close, enough to drain a pipe."""
_LAST_SECS = 0.5
_NAME_CHARS = 256
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class _OutputStream:
    """Splits the bytes of one pipe into lines, in bounded memory; passes on 1,000 a second, and counts the rest.

    Args:
        pass_on: called with each line (without the newline), and how many of its bytes were cut off.
        tell: called with the number of lines dropped.
        clock: measures seconds, and how long an unfinished line waits.
        longest: the length, in bytes, at which a line is cut.
        patience: how long an unfinished line waits for its newline, in nanoseconds.
    """

    def __init__(
        self,
        pass_on: Callable[[bytes, int], None],
        tell: Callable[[int], None],
        clock: Clock,
        longest: int,
        patience: int,
    ) -> None:
        self._pass_on = pass_on
        self._tell = tell
        self._clock = clock
        self._longest = longest
        self._patience = patience
        self._pending = bytearray()
        """The beginning of a line, since ``_since``; ``_cut`` more bytes of it are too many."""
        self._cut = self._since = 0
        self._passed = self._dropped = 0
        """Lines of the second that began at ``_second``."""
        self._second = clock.time_ns()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; passes on the lines that they complete."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._has_room():
                self._keep(data[start:end])
                self._finish()
            else:  # count the remaining lines without splitting them
                self._dropped += data.count(b"\n", start)
                self._pending, self._cut = bytearray(), 0
                end = data.rfind(b"\n")
            start = end + 1
        if start < len(data):
            self._keep(data[start:])

    def tick(self) -> None:
        """Does what is due: passes on a line that has waited long enough, reports dropped lines."""
        has_room = self._has_room()
        if self._pending and self._clock.time_ns() >= self._since + self._patience:
            self._dropped += not has_room
            self._finish() if has_room else self._pending.clear()

    def due(self) -> int | None:
        """When to call ``tick`` next, in the clock's nanoseconds; None: no need."""
        moments = [self._since + self._patience] if self._pending else []
        moments += [self._second + _SECOND] if self._dropped else []
        return min(moments, default=None)

    def end(self) -> None:
        """Passes on what is left, at the end of the stream."""
        if self._pending:
            self._finish()
        self._begin_second()

    def _has_room(self) -> bool:
        """Whether one more line may be passed on in this second."""
        if self._clock.time_ns() >= self._second + _SECOND:
            self._begin_second()
        return self._passed < _LINES_A_SECOND

    def _begin_second(self) -> None:
        dropped, self._dropped, self._passed, self._second = self._dropped, 0, 0, self._clock.time_ns()
        if dropped:
            self._tell(dropped)

    def _keep(self, piece: bytes) -> None:
        if not self._pending:
            self._since = self._clock.time_ns()
        taken = piece[: self._longest - len(self._pending)]
        self._pending += taken
        self._cut += len(piece) - len(taken)

    def _finish(self) -> None:
        line, cut = bytes(self._pending), self._cut
        self._pending, self._cut = bytearray(), 0
        self._passed += 1
        self._pass_on(line, cut)


class OutputReader:
    """Owner's side: reads what a model's hosts print and log, on its own daemon thread.

    Printed lines go to the logger ``headrace.host`` at INFO, log records to the logger of their name at their level,
    each prefixed with the model's name. About 1,000 lines per second of either kind are passed on; the rest is
    counted.

    Args:
        name: the model's name.
        clock: measures that limit, and how long an unfinished line waits for its newline (0.5 s).
        log: called instead of this process's logging, with logger name, level and text.

    Attributes:
        name: the model's name; it may change.

    Raises:
        OSError: too many files are open.
    """

    def __init__(
        self, name: str, clock: Clock | None = None, log: Callable[[str, int, str], None] | None = None
    ) -> None:
        self.name = name
        self._log_here = log or self._log_to_logger
        self._clock: Clock = clock or SystemClock()
        self._process = os.getpid()
        self._open: set[int] = set()
        """Open descriptors. Remove one before closing it, so that no thread closes a reused number."""
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"headrace output of {name}", daemon=True)
        try:
            self._printed_read, self.printed = self._pipe()
            self._logged_read, self.logged = self._pipe()
            self._wake_read, self._wake = self._pipe(1)
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
        self._join(timeout_secs)
        with suppress(KeyError):
            self._open.remove(self._wake)
            with suppress(OSError):  # the thread has ended
                os.write(self._wake, b"end")  # closing is not enough: forked children may have copies
            os.close(self._wake)
        self._join(_LAST_SECS)

    def _join(self, timeout_secs: float) -> None:
        if threading.current_thread() is not self._thread:  # a garbage collection may call close() on any thread
            self._thread.join(timeout_secs)

    def _pipe(self, size: int = _PIPE_BYTES) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        read, write = (lifted(end) for end in ends)
        self._open.update((read, write))
        self._close(*set(ends) - {read, write})
        os.set_blocking(read, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the user has reached the limit for all pipes
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
        return read, write

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            with suppress(KeyError):
                self._open.remove(descriptor)
                os.close(descriptor)

    def _run(self) -> None:
        try:
            with selectors.PollSelector() as selector:  # unlike epoll, it needs no descriptor
                self._pump(selector)
        finally:
            self._close(self._printed_read, self._logged_read, self._wake_read)

    def _pump(self, selector: selectors.BaseSelector) -> None:
        tell, clock = self._tell_dropped, self._clock
        streams = {
            self._printed_read: _OutputStream(self._pass_on_print, tell, clock, _LINE_BYTES, _SECOND // 2),
            self._logged_read: _OutputStream(self._pass_on_record, tell, clock, _RECORD_BYTES, 5 * _SECOND),
        }
        for descriptor in (*streams, self._wake_read):
            selector.register(descriptor, selectors.EVENT_READ)
        while streams:
            ready = {key.fd for key, _ in selector.select(self._patience(streams))}
            closing = self._wake_read in ready  # close() has waited long enough: read what has come, then stop
            for descriptor in [number for number in streams if closing or number in ready]:
                if not self._read(descriptor, streams[descriptor]) or closing:
                    selector.unregister(descriptor)
                    streams.pop(descriptor).end()
            for stream in streams.values():
                stream.tick()

    def _patience(self, streams: dict[int, _OutputStream]) -> float | None:
        """Seconds until a ``tick`` is due; None: wait for data only."""
        moment = min((due for stream in streams.values() if (due := stream.due()) is not None), default=None)
        return None if moment is None else max(0.0, (moment - self._clock.time_ns()) / _SECOND)

    def _read(self, descriptor: int, stream: _OutputStream) -> bool:
        """Reads what is available, up to a limit; returns False at the end of the stream."""
        for _ in range(_READS):
            try:
                data = os.read(descriptor, _LINE_BYTES)
            except BlockingIOError:
                return True
            stream.feed(data)
            if len(data) < _LINE_BYTES:  # the pipe is empty for now or, without any data, closed
                return bool(data)
        return True

    def _pass_on_print(self, line: bytes, cut: int) -> None:
        shown = line[:_LINE_BYTES]
        cut += len(line) - len(shown)
        text = _legible(shown.rstrip(b"\r").rpartition(b"\r")[2])  # a progress bar's final state
        self._log(_PRINTS.name, logging.INFO, f"{text} ... ({cut:,} more bytes)" if cut else text)

    def _pass_on_record(self, line: bytes, cut: int) -> None:
        if record := _parsed(line):
            level, name, text = record
            self._log(name, level, text)
        else:
            self._pass_on_print(line, cut)

    def _tell_dropped(self, lines: int) -> None:
        text = f"{lines:,} more lines were dropped; at most {_LINES_A_SECOND:,} a second are passed on."
        self._log(_PRINTS.name, logging.WARNING, text)

    def _log_to_logger(self, logger: str, level: int, text: str) -> None:
        logging.getLogger(logger).log(level, "%s: %s", self.name, text)

    def _log(self, logger: str, level: int, text: str) -> None:
        try:
            self._log_here(logger, level, text)
        except BaseException:  # this thread must survive any logging handler: hosts would block on an unread pipe
            if not self._failed:  # report it once
                self._failed = True
                with suppress(Exception):
                    traceback.print_exc()


def record_line(level: int, logger: str, text: str) -> bytes:
    """Encodes a log record for an ``OutputReader``'s pipe of records."""
    return f"{json.dumps([level, logger[:_NAME_CHARS], _shortened(text)])}\n".encode()


def _parsed(line: bytes) -> tuple[int, str, str] | None:
    """The level, logger name and text of a line from ``record_line``; None for any other line."""
    level = name = text = None
    with suppress(ValueError, TypeError, RecursionError):
        level, name, text = json.loads(line)
    if not (isinstance(level, int) and isinstance(name, str) and isinstance(text, str)):
        return None
    # lone surrogates, which the owner's logging handlers could not encode, become escapes
    name, text = (words.encode("utf-8", "backslashreplace").decode() for words in (name[:_NAME_CHARS], text))
    return level, name, text


def _shortened(text: str) -> str:
    """Cuts the middle out of a text that is too long; the last lines of a traceback say most."""
    half = _LINE_BYTES // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} more characters) ...\n{text[-half:]}"


def _legible(line: bytes) -> str:
    """Decodes a line; invalid bytes and control characters become escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line.decode("utf-8", "backslashreplace"))


def lifted(descriptor: int) -> int:
    """Returns the descriptor, or a duplicate above 2 if it is 0, 1 or 2; child programs do not inherit it."""
    if descriptor > 2:
        os.set_inheritable(descriptor, False)
        return descriptor
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
