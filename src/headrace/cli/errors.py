"""Errors as a user sees them: one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

_NOISY = ("apache_beam", "apitools", "oauth2client")
"""Beam and its libraries: their log and warnings mean little to someone who runs files."""


class ErrorConsole(Console):
    """A console that remembers the error that it has shown."""

    last_error: str | None = None


def report_error(console: Console, message: str, level: str = "error") -> None:
    """Prints one line; line ends in the message become spaces."""
    line = " ".join(message.split())
    if isinstance(console, ErrorConsole) and level == "error":
        console.last_error = line
    console.print(f"[bold red]{level}:[/]", end=" ", soft_wrap=True)
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def console_logging(console: Console, *, verbose: bool) -> Iterator[None]:
    """Sends the log and the warnings to ``console`` while the context is open; Beam's only with ``verbose``."""
    root, handler = logging.getLogger(), _ConsoleHandler(console, verbose=verbose)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, category, path, *_: (
            _warn(console, message, category) if verbose or not _is_noise(path) else None
        )
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)


def _warn(console: Console, message: Any, category: type[Warning]) -> None:
    console.print(f"{category.__name__}: {message}", markup=False, highlight=False, soft_wrap=True)


class _ConsoleHandler(logging.Handler):
    """Prints records above a live display, not into it."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        super().__init__()
        self._console = console
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record."""
        if self._verbose or not (record.name.startswith(_NOISY) or _is_noise(record.pathname)):
            text = f"{record.levelname.lower()}: {record.name}: {self.format(record)}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _is_noise(path: str) -> bool:
    return any(name in path for name in _NOISY)
