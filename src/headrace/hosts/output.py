"""What a model's hosts print and log reaches the logging of their owner, whatever it is and however much."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import logging
import os
import re
import selectors
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from headrace.core.clock import Clock, SystemClock

_PRINTS = logging.getLogger("headrace.host")

_SECOND = 1_000_000_000
_LINES_A_SECOND = 1_000
_LINE_BYTES = 64 * 1024
_RECORD_BYTES = 8 * _LINE_BYTES
"""The longest line on the pipe of log records: in JSON a character may take six."""
_PIPE_BYTES = 256 * 1024
"""Room for bursts; no more, since Linux limits all pipes of a user together to 64 MB, other programs' included."""
_READS = 16
"""How often a pipe is read before the other one has its turn; when closing, enough for all that a pipe holds."""
_LAST_SECS = 0.5
_MOST_NEW_LOGGERS = 1_000
"""Python never forgets a logger, so hosts may not have the owner make any number of them."""
_NAME_CHARS = 256
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class _Budget:
    """How many lines of a pipe may be passed on: so many a second, and for at most half of the reader's time.

    Where the owner's logging is slow, the other half is left for draining the pipe, on which a host would else wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._began = self._clock.time_ns()
        self._passed = self._spent = self.dropped = 0

    @property
    def ends(self) -> int:
        """When the next budget begins, in the clock's nanoseconds."""
        return self._began + max(_SECOND, 2 * self._spent)

    @property
    def has_room(self) -> bool:
        return self._passed < _LINES_A_SECOND and self._spent < _SECOND

    def renew(self, *, at_once: bool = False) -> int:
        """Begins the next budget if it is time; returns how many lines were dropped under the last one."""
        if not at_once and self._clock.time_ns() < self.ends:
            return 0
        dropped = self.dropped
        self._begin()
        return dropped

    def spend(self, nanoseconds: int) -> None:
        self._spent += nanoseconds
        self._passed += 1


@dataclass
class _OutputStream:
    """Makes lines of what comes through one pipe; memory is bounded, whatever comes."""

    pass_on: Callable[[bytes, int], None]
    """Takes a line without its end, and how many bytes of it were cut off."""
    tell: Callable[[int], None]
    """Takes the number of lines that were not passed on."""
    clock: Clock
    longest: int
    """At which length in bytes a line is cut."""
    patience: int
    """How long the beginning of a line waits for its end, in nanoseconds."""

    def __post_init__(self) -> None:
        self._budget = _Budget(self.clock)
        self._pending = bytearray()
        self._cut = 0
        self._since = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; passes on the lines that they finish."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._renew()
            if self._budget.has_room:
                self._keep(data[start:end])
                self._finish()
            else:  # a flood: count its lines without making them
                self._budget.dropped += data.count(b"\n", start)
                self._pending, self._cut = bytearray(), 0
                end = data.rfind(b"\n")
            start = end + 1
        if start < len(data):
            self._keep(data[start:])

    def tick(self) -> None:
        """Does what is due by now: passes on a line that has waited for its end, tells how many were dropped."""
        self._renew()
        if self._pending and self.clock.time_ns() >= self._since + self.patience:
            self._finish()

    def due(self) -> int | None:
        """When ``tick`` should be called, in the clock's nanoseconds."""
        moments = [self._since + self.patience] if self._pending else []
        moments += [self._budget.ends] if self._budget.dropped else []
        return min(moments, default=None)

    def end(self) -> None:
        """Passes on what is left; nothing more will come."""
        if self._pending:
            self._finish()
        self._renew(at_once=True)

    def _renew(self, *, at_once: bool = False) -> None:
        if dropped := self._budget.renew(at_once=at_once):
            self.tell(dropped)

    def _keep(self, piece: bytes) -> None:
        if not self._pending:
            self._since = self.clock.time_ns()
        taken = piece[: self.longest - len(self._pending)]
        self._pending += taken
        self._cut += len(piece) - len(taken)

    def _finish(self) -> None:
        line, cut = bytes(self._pending), self._cut
        self._pending, self._cut = bytearray(), 0
        if not self._budget.has_room:
            self._budget.dropped += 1
            return
        started = self.clock.time_ns()
        self.pass_on(line, cut)
        self._budget.spend(self.clock.time_ns() - started)


class OutputReader:
    """Owner's side: passes on what a model's hosts print and log, on a daemon thread of its own.

    Printed lines go to the logger ``headrace.host`` at INFO, log records to the logger of their name at their level,
    all with the model's name before them. Of either, about 1,000 lines a second are passed on; the rest is counted.

    Args:
        name: the model's name.
        clock: measures the seconds of that limit, and the half second that an unfinished line waits for its end.
        log: takes each line in place of this process's logging: the logger's name, the level and the text.

    Raises:
        OSError: there are too few file descriptors.
    """

    def __init__(
        self, name: str, clock: Clock | None = None, log: Callable[[str, int, str], None] | None = None
    ) -> None:
        self._name = name
        self._log_here = log or self._log_to_logger
        self._clock: Clock = clock or SystemClock()
        self._process = os.getpid()
        self._open: set[int] = set()
        """Descriptors; whoever closes one removes it first, so that no number is closed twice."""
        self._new_loggers = 0
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
        atexit.register(self.close, 0.0)  # a thread that logs while the interpreter ends may abort the process

    def release(self) -> None:
        """Closes the owner's copies of the write ends, once the fork server has its own."""
        self._close(self.printed, self.logged)

    def close(self, timeout_secs: float = 1.0) -> None:
        """Waits until everything written has been passed on; ends the thread and closes every descriptor.

        Args:
            timeout_secs: how long to wait for others to close their write ends; what has come by then is passed on. For
                a handler of the owner's logging that blocks it waits half a second more; the thread ends when it can.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._process:  # a fork of the owner: the thread is not here
            self._close(*self._open)
            return
        self.release()
        self._join(timeout_secs)
        with suppress(KeyError):
            self._open.remove(self._wake)
            with suppress(OSError):  # the thread has ended
                os.write(self._wake, b"end")  # closing would not do: forks of the owner may have copies
            os.close(self._wake)
        self._join(_LAST_SECS)

    def _join(self, timeout_secs: float) -> None:
        if threading.current_thread() is not self._thread:  # as it is where a garbage collection closes
            self._thread.join(timeout_secs)

    def _pipe(self, size: int = _PIPE_BYTES) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        read, write = (lifted(end) for end in ends)
        self._open.update((read, write))
        self._close(*set(ends) - {read, write})
        os.set_blocking(read, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the user's pipes are at their limit
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
        return read, write

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            with suppress(KeyError):
                self._open.remove(descriptor)
                os.close(descriptor)

    def _run(self) -> None:
        try:
            with selectors.PollSelector() as selector:  # needs no descriptor of its own
                self._pump(selector)
        finally:
            self._close(self._printed_read, self._logged_read, self._wake_read)

    def _pump(self, selector: selectors.BaseSelector) -> None:
        new = functools.partial(_OutputStream, tell=self._tell_dropped, clock=self._clock)
        streams = {
            self._printed_read: new(self._pass_on_print, longest=_LINE_BYTES, patience=_SECOND // 2),
            self._logged_read: new(self._pass_on_record, longest=_RECORD_BYTES, patience=5 * _SECOND),
        }
        for descriptor in (*streams, self._wake_read):
            selector.register(descriptor, selectors.EVENT_READ)
        while streams:
            ready = {key.fd for key, _ in selector.select(self._patience(streams))}
            closing = self._wake_read in ready
            for descriptor in [number for number in streams if closing or number in ready]:
                if not self._read(descriptor, streams[descriptor]) or closing:
                    selector.unregister(descriptor)
                    streams.pop(descriptor).end()
            for stream in streams.values():
                stream.tick()

    def _patience(self, streams: dict[int, _OutputStream]) -> float | None:
        """Seconds until something is due."""
        moment = min((due for stream in streams.values() if (due := stream.due()) is not None), default=None)
        return None if moment is None else max(0.0, (moment - self._clock.time_ns()) / _SECOND)

    def _read(self, descriptor: int, stream: _OutputStream) -> bool:
        """Reads what is there, up to a limit; whether more may come."""
        for _ in range(_READS):
            try:
                data = os.read(descriptor, _LINE_BYTES)
            except BlockingIOError:
                return True
            stream.feed(data)
            if len(data) < _LINE_BYTES:  # the pipe is empty now, or for ever
                return bool(data)
        return True

    def _pass_on_print(self, line: bytes, cut: int) -> None:
        shown = line[:_LINE_BYTES]
        cut += len(line) - len(shown)
        text = _legible(shown.rstrip(b"\r").rpartition(b"\r")[2])  # of a progress bar what a terminal would show last
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

    def _logger(self, name: str) -> logging.Logger:
        if name not in ("", logging.root.name) and name not in logging.root.manager.loggerDict:
            if self._new_loggers == _MOST_NEW_LOGGERS:
                return _PRINTS
            self._new_loggers += 1
        return logging.getLogger(name)

    def _log_to_logger(self, logger: str, level: int, text: str) -> None:
        self._logger(logger).log(level, "%s: %s", self._name, text)

    def _log(self, logger: str, level: int, text: str) -> None:
        try:
            self._log_here(logger, level, text)
        except BaseException:  # whatever a handler raises: hosts would wait for ever on a pipe that nobody reads
            if not self._failed:  # once will do
                self._failed = True
                with suppress(Exception):
                    traceback.print_exc()


def record_line(level: int, logger: str, text: str) -> bytes:
    """A record as it goes through the pipe that an ``OutputReader`` reads records from."""
    return f"{json.dumps([level, logger[:_NAME_CHARS], _shortened(text)])}\n".encode()


def _parsed(line: bytes) -> tuple[int, str, str] | None:
    """Level, logger's name and text of a line that a ``_RecordSender`` wrote; None for any other line."""
    level = name = text = None
    with suppress(ValueError, TypeError, RecursionError):
        level, name, text = json.loads(line)
    if not (isinstance(level, int) and isinstance(name, str) and isinstance(text, str)):
        return None
    # no halves of characters, which the owner's handlers could not write
    name, text = (words.encode("utf-8", "backslashreplace").decode() for words in (name[:_NAME_CHARS], text))
    return level, name, text


def _shortened(text: str) -> str:
    """A text without its middle where it is too long: of an exception, the last lines say most."""
    half = _LINE_BYTES // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} more characters) ...\n{text[-half:]}"


def _legible(line: bytes) -> str:
    """The line as text; what is no text, and what would move a terminal's cursor, is shown as escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line.decode("utf-8", "backslashreplace"))


def lifted(descriptor: int) -> int:
    """A descriptor of the same file other than 0, 1 and 2, which programs that are started do not inherit."""
    if descriptor > 2:
        os.set_inheritable(descriptor, False)
        return descriptor
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
