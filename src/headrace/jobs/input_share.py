"""How much of its input a run has done: the share of the files' bytes whose rows were answered.

Files are read ahead of the model. So what counts is rows: each block notes how many it has and how far its file is
read at its end, and the share grows with the rows that are answered in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

following: dict[str, InputShare] = {}
"""The shares of this process's runs, by output folder."""

_ALMOST = 0.999
"""The most that a run has done while it is at work."""


@dataclass
class Position:
    """How far a file is read: of text in bytes and lines, of Parquet in rows."""

    bytes: int = 0
    """Read of a text file, as stored: compressed."""
    lines: int = 0
    """Lines in them; 0 where nobody counts."""
    lines_done: int = 0
    """Lines that have become rows. The others are read ahead: they may be all of a small file."""
    rows: int = 0
    """Rows that a Parquet file has."""
    rows_done: int = 0

    def part(self, size: int) -> float:
        """How much of the file has become rows, from 0 to 1.

        Args:
            size: of the file, in bytes.
        """
        if self.rows:
            return min(1.0, self.rows_done / self.rows)
        handed_on = self.lines_done / self.lines if self.lines else 1.0
        return min(1.0, handed_on * self.bytes / size) if size else 1.0


positions: dict[str, Position] = {}
"""By path; of the last time that the file was opened."""


class CountedFile:
    """A file that counts what is read of it.

    Args:
        file: open for reading.
        position: counts the bytes.
    """

    def __init__(self, file: BinaryIO, position: Position) -> None:
        self._file = file
        self._position = position

    def read(self, size: int = -1) -> bytes:
        """As the file's."""
        chunk = self._file.read(size)
        self._position.bytes += len(chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class InputShare:
    """The share of one run's input that is done. Thread-safe.

    Args:
        sizes: of the files in bytes, by path; None if nobody knows, as of a pipe.
        limit: how many rows the run reads at most; None: all.
    """

    def __init__(self, sizes: Mapping[str, int | None], limit: int | None = None) -> None:
        self._limit = limit
        known = {path: size for path, size in sizes.items() if size is not None}
        self._sizes = known if len(known) == len(sizes) else {}
        self._total = sum(self._sizes.values())
        self._parts: dict[str, float] = {}
        self._lock = threading.Lock()
        self._rows, self._share = 0, 0.0
        """Up to the end of the last block."""
        self._done = (0, 0.0)
        """Up to the end of the last block whose rows are answered."""
        self._ends: deque[tuple[int, float]] = deque()
        """Up to the end of each block after that."""

    def add(self, path: str, rows: int) -> None:
        """Notes that a block of a file was made, with so many rows to answer."""
        size = self._sizes.get(path, 0)
        part = positions.get(path, Position()).part(size)
        with self._lock:
            before = self._parts.get(path, 0.0)
            self._parts[path] = max(before, part)
            self._rows += rows
            self._share += max(0.0, part - before) * size / max(1, self._total)
            self._ends.append((self._rows, self._share))

    def at(self, rows: int) -> float | None:
        """The share of the input, from 0 to 1, that the first ``rows`` rows are; None if nobody knows."""
        of_files = self._of_files(rows)
        if self._limit is None or (of_files is None and not rows):
            return of_files
        return min(max(of_files or 0.0, rows / self._limit), _ALMOST)

    def _of_files(self, rows: int) -> float | None:
        with self._lock:
            if not self._total or not self._rows:
                return None
            rows = max(rows, self._done[0])
            while self._ends and self._ends[0][0] <= rows:
                self._done = self._ends.popleft()
            before, share = self._done
            if self._ends:
                end, share_at_end = self._ends[0]
                share += (share_at_end - share) * (rows - before) / (end - before)
            return min(share, _ALMOST)
