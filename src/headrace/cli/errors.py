"""Errors as a user sees them: one line."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from rich.console import Console

from headrace.core.spelling import nearest

_NOISY = ("apache_beam", "apitools", "oauth2client")
"""Beam and its libraries: their log and warnings mean little to someone who runs files."""
_FROM_WORKERS = os.path.join("fn_api_runner", "worker_handlers.py")
"""The file of Beam that logs the records of worker processes again, as text."""
_MISSING = {
    "--output": "name the file for the predictions, for example --output predictions.jsonl.",
    "INPUT": "name at least one file or glob, or - for standard input.",
    "DEAD_LETTERS": "name at least one file of dead letters.",
}
"""What to do about each required argument that is missing."""


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


def usage_error(error: Any, words: Sequence[str]) -> str:
    """What is wrong with a command line, and the cure.

    Args:
        error: of typer: an exception with ``format_message``.
        words: the command line.
    """
    message = _plainly(str(error.format_message()), words)
    missing = next((option for option in _MISSING if f"'{option}'" in message), None)
    if not message.startswith("Missing") or missing is None:
        return message
    meant = nearest(missing, {word.partition("=")[0] for word in words if word.startswith("--")} - {missing})
    short = f"-{missing.lstrip('-')[0]}"
    mistyped = meant or (short if missing.startswith("--") and short in words else None)
    cure = f"there is no {mistyped}; write {missing}." if mistyped else _MISSING[missing]
    return f"{message.rstrip('.')}: {cure}"


def _plainly(message: str, words: Sequence[str]) -> str:
    """A message about a wrong value, with that value, and without the words of the library that checks it."""
    found = re.match(r"(Invalid value for '(--[\w-]+)'): Input should be a valid (\w+)", message)
    if found is None:
        return message.replace(": Value error, ", ": ", 1)
    begin, option, kind = found.groups()
    given = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    given += [value for word, value in pairwise(words) if word == option]
    return f"{begin}: {given[-1]!r} is not a valid {kind}." if given else message


@contextmanager
def console_logging(console: Console, *, verbose: bool) -> Iterator[None]:
    """Sends the log and the warnings to ``console`` while the context is open; Beam's only with ``verbose``.

    What a handler logs in one of Beam's worker processes is not Beam's.
    """
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
        text = f"{record.levelname.lower()}: {record.name}: {self.format(record)}"
        if not self._verbose and (record.name.startswith(_NOISY) or _is_noise(record.pathname)):
            message = _of_worker(record)
            if not message:
                return
            text = f"{record.levelname.lower()}: {message}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _is_noise(path: str) -> bool:
    return any(name in path for name in _NOISY)


def _of_worker(record: logging.LogRecord) -> str:
    """The message of a worker process's record that is not Beam's own; empty for any other.

    Beam logs it as the text of a protocol buffer, in which bytes that are not ASCII are escaped.
    """
    if not record.pathname.endswith(_FROM_WORKERS):
        return ""
    said: dict[str, str] = dict(re.findall(r'^(message|log_location): "(.*)"$', record.getMessage(), re.MULTILINE))
    if _is_noise(said.get("log_location", "")):
        return ""
    return (
        said.get("message", "")
        .encode()
        .decode("unicode_escape")
        .encode("latin-1", "replace")
        .decode("utf-8", "replace")
    )
