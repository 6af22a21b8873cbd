"""Rows as Python values, and what stands in for those that cannot be read. Model hosts import this module, too."""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]


class BrokenLine(NamedTuple):
    """Stands in for a row whose line cannot be read."""

    line: str
    file: str
    number: int
    """Line number, counted from 1."""
    error: Exception
    attempts: int = 0
    """Attempts in earlier runs."""

    @property
    def row(self) -> Row:
        """The line in the form of a row."""
        return {"line": self.line, "file": self.file, "line_number": self.number}


class TriedRow(dict[str, Any]):
    """A row from a dead letter of an earlier run."""

    def __init__(self, row: Row, attempts: int) -> None:
        super().__init__(row)
        self.attempts = attempts
        """Attempts in earlier runs."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles through the constructor: dicts are otherwise filled item by item into an empty instance."""
        return TriedRow, (dict(self), self.attempts)


Record = Row | BrokenLine
