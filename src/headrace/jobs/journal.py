"""Rows that were paid for, in a file from the moment they are written: killing the process loses none.

The operating system has each line at once; a part has the row durably within a second. Then the journal goes.
"""

from __future__ import annotations

import glob
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO

from headrace.jobs.output_batches import OutputLine

_SUFFIX = ".journal"


class Journal:
    """The rows of a part that are not durable yet. Not thread-safe.

    Args:
        part: the part's path.
    """

    def __init__(self, part: str) -> None:
        self._paths = (f"{part}-{number}{_SUFFIX}" for number in itertools.count())
        self._file: BinaryIO | None = None

    def add(self, lines: Iterable[OutputLine]) -> None:
        """Hands rows to the operating system."""
        if self._file is None:
            self._file = open(next(self._paths), "xb")  # noqa: SIM115 - it stays open
        self._file.write(b"".join(map(_record, lines)))
        self._file.flush()

    def end(self) -> str | None:
        """Ends the current file; returns its path, to be removed once its rows are durable. None: there is none."""
        file, self._file = self._file, None
        if file is None:
            return None
        file.close()
        return file.name


def journals(part: str) -> list[str]:
    """The files that killed processes left; ``part`` is a pattern of parts' paths."""
    return sorted(glob.glob(f"{part}-*{_SUFFIX}"))


def read_journal(path: str) -> Iterator[OutputLine]:
    """The rows of a file, but for one that breaks off; none if its part has them by now."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        for record in file:
            check, _, rest = record.rstrip(b"\n").partition(b" ")
            place, _, text = rest.partition(b" ")
            if check == _check(rest):
                yield OutputLine(int(place), text.decode())


def remove_journal(path: str | None) -> None:
    """Removes a file, if there is one."""
    if path is not None:
        with suppress(FileNotFoundError):
            os.remove(path)


def _record(line: OutputLine) -> bytes:
    rest = f"{line.place} {line.text}".encode()
    return b"%s %s\n" % (_check(rest), rest)


def _check(rest: bytes) -> bytes:
    return b"%08x" % zlib.crc32(rest)
