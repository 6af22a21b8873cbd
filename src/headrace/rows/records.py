"""Rows as Python values, and what stands in for those that cannot be read. Model hosts import this module, too."""

from __future__ import annotations

from collections.abc import Mapping
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
    read_as: dict[str, Any] | None = None
    """How its line is read: format, delimiter, and types of the columns by name; None if it is no line of text."""
    position: dict[str, Any] | None = None
    """That of its dead letter of an earlier run."""

    @property
    def row(self) -> Row:
        """The line in the form of a row."""
        return {"line": self.line, "file": self.file, "line_number": self.number}


class TriedRow(dict[str, Any]):
    """A row from a dead letter of an earlier run."""

    def __init__(self, row: Row, attempts: int, position: dict[str, Any] | None = None) -> None:
        super().__init__(row)
        self.attempts = attempts
        """Attempts in earlier runs."""
        self.position = position
        """That of its dead letter; None if it has none."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles through the constructor: dicts are otherwise filled item by item into an empty instance."""
        return TriedRow, (dict(self), self.attempts, self.position)


class TypedRow(dict[str, Any]):
    """The columns of a row for a handler that keeps their types, with what the source states of them."""

    def __init__(self, row: Row, types: Mapping[str, str]) -> None:
        super().__init__(row)
        self.types = types
        """By column: the names of ``headrace.rows.types``."""


Record = Row | BrokenLine
