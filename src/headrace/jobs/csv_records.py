"""Reads CSV files row by row: records, their fields, and which of them are broken.

Records follow Python's ``csv`` in strict mode. A record that it refuses becomes one ``BrokenLine`` with all of its
lines, and reading continues after it.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

from headrace.jobs.csv_types import TEXT, Quoted, cell
from headrace.jobs.text import TextFile, not_utf8, whole_lines
from headrace.rows.records import BrokenLine, Row

_MOST_OF_A_QUOTE = 1 << 29
_TROUBLE = str.maketrans("\r\0", "\1\1")


def csv_lines(file: TextFile) -> Iterator[bytes]:
    """Lines with their line ends."""
    return (line + b"\n" for text in whole_lines(file) for line in text.split(b"\n")[:-1])


class CsvRecords:
    """The CSV records in a sequence of lines.

    Creating one lifts the ``csv`` module's field limit of 131,072 characters. The limit is global to the process, so it
    is lifted only when a job reads a CSV file.

    Args:
        lines: with their line ends.
        delimiter: between fields.
        path: of the file.
        before: how many lines of the file precede these.
    """

    def __init__(self, lines: Iterator[bytes], delimiter: str, path: str, before: int = 0) -> None:
        csv.field_size_limit(sys.maxsize)
        self._path = path
        self._delimiter = delimiter
        end = re.escape(delimiter)
        self._field = re.compile(rf'("[^"]*(?:""[^"]*)*"|[^{end}\r\n]*)(?:{end}|[\r\n]*\Z)')
        self._first = before + 1
        self._record: list[str] = []
        self._undecodable: UnicodeDecodeError | None = None
        self._is_at_end = False
        self._texts = self._decoded(lines)
        self._reader = csv.reader(self._texts, delimiter=delimiter, strict=True)
        self._records = self._fields()

    def header(self) -> list[str]:
        """The column names from the first record that is not empty; an empty list for an empty file.

        Raises:
            ValueError: the header cannot be read, or has a name twice.
        """
        for header in self._records:
            if isinstance(header, Exception):
                raise ValueError(f"the header cannot be read: {header}")
            if header:
                twice = sorted({name for name in header if header.count(name) > 1})
                if twice:
                    raise ValueError(
                        f"the header has {', '.join(map(repr, twice))} twice, and a row can have it once only; rename "
                        "one of them in the header"
                    )
                return header
        return []

    def rows(self, header: list[str], types: Mapping[str, str]) -> Iterator[Row | BrokenLine]:
        """The remaining records; empty lines are left out, and one with a field that does not fit is broken."""
        kinds = [types.get(name, TEXT) for name in header]
        columns = dict(zip(header, kinds, strict=True))
        self._read_as = {"format": "csv", "delimiter": self._delimiter, "columns": columns}
        for fields in self._records:
            if isinstance(fields, Exception):
                yield self._broken(fields)
            elif len(fields) == len(header):
                try:
                    row: Row = dict(zip(header, map(cell, kinds, header, self._with_nulls(fields)), strict=True))
                except ValueError as error:
                    yield self._broken(error)
                else:
                    yield row
            elif fields:
                yield self._broken(ValueError(f"the line has {len(fields)} fields, the header {len(header)}"))

    def are_rows(self) -> Iterator[bool]:
        """For each of the remaining records, whether ``rows`` has it: that is not empty."""
        return (isinstance(fields, Exception) or bool(fields) for fields in self._records)

    def sample(self, header: list[str]) -> Iterator[Row | BrokenLine]:
        """The remaining records as text; fields in quotes are ``Quoted``."""
        for row in self.rows(header, {}):
            if isinstance(row, BrokenLine):
                yield row
            else:
                yield {
                    name: Quoted(field) if is_quoted else field
                    for (name, field), is_quoted in zip(row.items(), self.in_quotes(), strict=False)
                }

    def in_quotes(self) -> Iterator[bool]:
        """Which fields of the record that was read last are in quotes."""
        record = "".join(self._record)
        if '"' not in record:
            return repeat(False)
        return (found[1].startswith('"') for found in self._field.finditer(record))

    def _with_nulls(self, fields: list[str]) -> Sequence[str | None]:
        """The fields, None in place of those that are empty and not in quotes."""
        if "" not in fields:
            return fields
        return [
            field if field or is_quoted else None for field, is_quoted in zip(fields, self.in_quotes(), strict=False)
        ]

    def _fields(self) -> Iterator[list[str] | Exception]:
        """The fields of each record; an exception in place of a record that cannot be read."""
        while True:
            try:
                for fields in self._reader:
                    yield self._undecodable or fields
                    self._next()
                return
            except csv.Error as error:
                yield self._mistake(error)
                self._next()

    def _next(self) -> None:
        self._first += len(self._record)
        self._record.clear()
        self._undecodable = None

    def _decoded(self, lines: Iterator[bytes]) -> Iterator[str]:
        size = 0
        for line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                text = line.decode("utf-8", "backslashreplace")
                self._undecodable = self._undecodable or not_utf8(error)
            size = size + len(text) if self._record else 0
            if size > _MOST_OF_A_QUOTE:
                raise ValueError(
                    f"the record that begins in line {self._first} goes on for more than {_MOST_OF_A_QUOTE >> 20} MiB "
                    "of lines; is a quote not closed?"
                )
            self._record.append(text)
            yield text
        self._is_at_end = True

    def _mistake(self, error: csv.Error) -> Exception:
        """The error of a refused record; first reads the remaining lines of that record."""
        if self._is_at_end:
            return ValueError("a quote is never closed, so that this record goes on to the end of the file")
        # The strict reader stopped in the middle of the record. A lenient one, given the same lines, finds its end.
        next(csv.reader(self._harmless(), delimiter=self._delimiter), None)
        return error

    def _harmless(self) -> Iterator[str]:
        """The lines of the current record and those that follow, with quotes as the only special characters."""
        for line in chain(self._record[:], self._texts):
            yield line.rstrip("\r\n").translate(_TROUBLE) + "\n"

    def _broken(self, error: Exception) -> BrokenLine:
        return BrokenLine("".join(self._record).rstrip("\r\n"), self._path, self._first, error, read_as=self._read_as)
