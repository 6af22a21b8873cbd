"""How far this process has read each input file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO


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
