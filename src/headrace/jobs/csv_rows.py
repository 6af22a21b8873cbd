"""The rows of CSV files, one by one: what is a record, what its fields are, and which of them cannot be read.

Records are read as Python's ``csv`` does when it is strict. One that it refuses is a single ``BrokenLine``, of all the
lines that belong to it, and reading goes on behind it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from headrace.jobs.files import Source
from headrace.jobs.rows import BrokenLine, Row
from headrace.jobs.text import TextFile, ends_with_returns, lines, lines_of_any_end, not_utf8, open_text

_MOST_OF_A_QUOTE = 1 << 29
_TROUBLE = str.maketrans("\r\0", "\1\1")


def read_csv(source: Source, numbers: Mapping[str, type]) -> Iterator[Row | BrokenLine]:
    """The rows of a file; see ``headrace.jobs.reading.read_rows``."""
    with open_text(source) as file:
        records = CsvRecords(csv_lines(file), source.delimiter, source.path)
        yield from records.rows(records.header(), numbers)


def csv_lines(file: TextFile) -> Iterator[bytes]:
    r"""Lines with their ends: ``\n``, and ``\r`` too where that ends the first one."""
    if ends_with_returns(file.beginning):
        return lines_of_any_end(file)
    return (line + b"\n" for line in lines(file))


def number(kind: type, field: str) -> int | float | str | None:
    """A field of a column of numbers."""
    if "_" not in field:  # which Python takes for part of a number
        for attempt in (kind, float):
            try:
                value: int | float = attempt(field)
            except ValueError:
                continue
            return value
    return field if field.strip() else None


class CsvRecords:
    """The records of some lines.

    The first one makes Python's ``csv`` take fields of any length, in all of this process: its limit of 131,072
    characters is one for the whole process, and so is only ever raised, and only where a CSV file of a job is read.

    Args:
        lines: with their ends.
        delimiter: between fields.
        path: of the file.
        before: how many lines of it come before these.
    """

    def __init__(self, lines: Iterator[bytes], delimiter: str, path: str, before: int = 0) -> None:
        csv.field_size_limit(sys.maxsize)
        self._path = path
        self._delimiter = delimiter
        self._first = before + 1
        self._record: list[str] = []
        self._undecodable: UnicodeDecodeError | None = None
        self._is_at_end = False
        self._texts = self._decoded(lines)
        self._reader = csv.reader(self._texts, delimiter=delimiter, strict=True)
        self._records = self._fields()

    def header(self) -> list[str]:
        """The names of the columns, in the first record that is not empty; none of an empty file.

        Raises:
            ValueError: it cannot be read, or a name is there twice.
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

    def rows(self, header: list[str], numbers: Mapping[str, type]) -> Iterator[Row | BrokenLine]:
        """The records that follow, but for empty lines."""
        kinds = [numbers.get(name, str) for name in header]
        for fields in self._records:
            if isinstance(fields, Exception):
                yield self._broken(fields)
            elif len(fields) == len(header):
                yield dict(zip(header, self._values(kinds, fields), strict=True))
            elif fields:
                yield self._broken(ValueError(f"the line has {len(fields)} fields, the header {len(header)}"))

    def _fields(self) -> Iterator[list[str] | Exception]:
        """Of each record; an exception in place of one that cannot be read."""
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
                self._undecodable = self._undecodable or not_utf8(error, Source(self._path, "csv", self._delimiter))
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
        """What is wrong with a record, of which all lines have been read then."""
        if self._is_at_end:
            return ValueError("a quote is never closed, so that this record goes on to the end of the file")
        next(csv.reader(self._harmless(), delimiter=self._delimiter), None)
        return error

    def _harmless(self) -> Iterator[str]:
        """The lines of a record, from its beginning, and those after them, with quotes for their only trouble."""
        for line in chain(self._record[:], self._texts):
            yield line.rstrip("\r\n").translate(_TROUBLE) + "\n"

    def _values(self, kinds: list[type], fields: list[str]) -> list[Any]:
        if "_" not in "".join(self._record):  # which Python takes for part of a number
            try:
                return [kind(field) for kind, field in zip(kinds, fields, strict=True)]
            except ValueError:
                pass
        return [field if kind is str else number(kind, field) for kind, field in zip(kinds, fields, strict=True)]

    def _broken(self, error: Exception) -> BrokenLine:
        return BrokenLine("".join(self._record).rstrip("\r\n"), self._path, self._first, error)
