"""What a command tells its user, and hears: errors in one line, the log, SIGINT and SIGTERM."""

from __future__ import annotations

import logging
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Any

from rich.console import Console

from headrace.core.errors import HeadraceError, as_type_name

_NOISY = ("apache_beam", "apitools", "oauth2client")
"""Beam and its libraries: their log and warnings mean little to someone who runs files."""
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class ExitCode(IntEnum):
    """How a command ended: its exit code."""

    DONE = 0
    FAILED = 1
    WRONG_ARGUMENT = 2
    REFUSED = 3
    """Or something is left to do, or has changed too much."""
    BUDGET_SPENT = 4
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


class ErrorConsole(Console):
    """A console that remembers the error that it has shown."""

    last_error: str | None = None


def report_error(console: Console, message: str, level: str = "error") -> None:
    """Prints one line; line ends in the message become spaces."""
    line = " ".join(message.split())
    if isinstance(console, ErrorConsole) and level == "error":
        console.last_error = line
    console.print(f"[bold red]{level}:[/]", end=" ", soft_wrap=True)
    say(console, line)


def fail(console: Console, code: int, message: str, error: BaseException, *, verbose: bool) -> int:
    """Prints one line, and before it the traceback if that is wanted; returns the exit code."""
    if verbose:
        traceback.print_exception(error)
    report_error(console, message)
    return code


def error_text(error: BaseException) -> str:
    """What an error says; with its type, unless it is about something that the user gave."""
    is_clear = isinstance(error, HeadraceError | ValueError) and str(error)
    return str(error) if is_clear else f"{as_type_name(error)}: {error}"


def say(console: Console, text: str) -> None:
    """Prints a text as it is: without markup, and without breaking lines."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def console_logging(console: Console, *, verbose: bool) -> Iterator[None]:
    """Sends the log and the warnings to ``console`` while the context is open; Beam's only with ``verbose``."""
    root, handler = logging.getLogger(), _ConsoleHandler(console, verbose=verbose)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        if verbose or not _is_noise(filename):
            say(console, f"{category.__name__}: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)


class _ConsoleHandler(logging.Handler):
    """Prints records above a live display, not into it."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        super().__init__()
        self._console = console
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        if self._verbose or not (record.name.startswith(_NOISY) or _is_noise(record.pathname)):
            text = f"{record.levelname.lower()}: {record.name}: {self.format(record)}"
            say(self._console, text)


def _is_noise(path: str) -> bool:
    return any(name in path for name in _NOISY)


class Signals:
    """While the context is open, a signal raises KeyboardInterrupt in the main thread and is remembered.

    It is remembered because modules that are being imported swallow some exceptions. A signal that the process was
    started to ignore stays ignored. Outside the main thread, the only one that can handle signals, nothing changes.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.heeded = True
        """Whether signals raise; not while one is being handled."""
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What shells expect from a process that a signal ended."""
        return 128 + (self.received[0] if self.received else signal.SIGINT)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if self.heeded:
            raise KeyboardInterrupt
