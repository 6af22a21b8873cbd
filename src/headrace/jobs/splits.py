"""Cuts files into parts for several workers: ranges of bytes of text, and of rows of Parquet.

Parts know their first row and line, so places of rows and dead letters are those of the whole file, however it is cut.
To know them this process looks for line ends once, at a gigabyte or so a second, while workers are at the first parts.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

import numpy

from headrace.jobs import pipes
from headrace.jobs.csv_blocks import DELIMITERS, encloses_fields
from headrace.jobs.csv_records import CsvRecords
from headrace.jobs.files import Part, Source, compression_of, known_size
from headrace.jobs.opening import open_source
from headrace.jobs.reading import parquet_file
from headrace.jobs.storage import is_remote

_FEWEST_BYTES, _MOST_BYTES = 1 << 12, 1 << 26
_PARTS_LEFT = 4
"""A part is so much of what is left that about this many follow for each worker: the last parts are small, so that all
workers end at about the same time."""
_EQUAL_SHARE = 32
"""The last 32nd of the input is cut into equal parts: smaller ones would each cost a small batch."""
_PIECE_BYTES, _SLOW_BYTES = 1 << 22, 1 << 16
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_BLANK = re.compile(rb"(?<=\n)[ \t\r\x0b\x0c]*\n")
_BEFORE_BLANK = re.compile(rb"\n[ \t\r\n\x0b\x0c]")
"""How a line begins that may be blank: to look for that is ten times as fast."""
_ALMOST = 0.999


class Splits:
    """The parts of a job's files, in order, and how much of them is done; a file that cannot be cut is one part.

    Args:
        sources: the files.
        workers: how many take parts.
    """

    def __init__(self, sources: Sequence[Source], workers: int) -> None:
        self._sources = sources
        self._parts = _PARTS_LEFT * workers
        self._sizes = [known_size(source) if _can_cut(source) else None for source in sources]
        self._total = self._left = sum(size or 0 for size in self._sizes)
        self._rows = 0
        self.earlier_rows = 0
        """How many rows earlier runs have done."""

    def __iter__(self) -> Iterator[tuple[int, Source]]:
        """The parts, each with the index of its file.

        Raises:
            OSError: a file cannot be read.
        """
        for index, (source, size) in enumerate(zip(self._sources, self._sizes, strict=True)):
            parts = 0
            try:
                for part in self._of(source, size):
                    parts += 1
                    self._rows += part.rows
                    yield index, source._replace(part=part, files=source.files[part.row : part.row + part.rows])
            except Exception as error:
                raise OSError(f"cannot read {source.path} as {source.format}: {error}") from error
            if not parts:
                yield index, source

    def at(self, rows: int) -> float | None:
        """The share of the input, from 0 to 1, that so many rows are; None if that is unknown."""
        if None in self._sizes or not self._rows:
            return None
        return min((self.earlier_rows + rows) / self._rows * (1 - self._left / self._total), _ALMOST)

    def _of(self, source: Source, size: int | None) -> Iterator[Part]:
        if not size:
            return iter(())
        if source.files:
            return self._of_files(source, size)
        return self._of_groups(source, size) if source.format == "parquet" else self._of_text(source, size)

    def _next_bytes(self) -> int:
        return max(_FEWEST_BYTES, min(_MOST_BYTES, max(self._left, self._total // _EQUAL_SHARE) // self._parts))

    def _of_files(self, source: Source, size: int) -> Iterator[Part]:
        before, row, total = self._left, 0, len(source.files)
        while row < total:
            stop = min(total, row + max(1, self._next_bytes() * total // size))
            self._left = before - size * stop // total
            yield Part(row, stop - row, stop == total)
            row = stop

    def _of_groups(self, source: Source, size: int) -> Iterator[Part]:
        """Whole row groups, or a few pieces of a large one: each worker reads a group from its beginning."""
        with open_source(source) as file:
            metadata = parquet_file(file).metadata
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        ends, before = list(accumulate(groups)), self._left
        row, total = 0, sum(groups)
        while row < total:
            group = bisect_right(ends, row)
            rows = max(1, self._next_bytes() * total // size, min(groups[group] // self._parts, ends[group] - row))
            stop = ends[max(group, bisect_right(ends, row + rows) - 1)] if row + rows >= ends[group] else row + rows
            self._left = before - size * stop // total
            yield Part(row, stop - row, stop == total)
            row = stop

    def _of_text(self, source: Source, size: int) -> Iterator[Part]:
        before = self._left
        with open(source.path, "rb") as file:
            scan = _Scan(file, source)
            while (part := scan.next_part(self._next_bytes())).stop > part.start:
                self._left = before - part.stop
                yield part._replace(is_last=part.stop >= size)


def _can_cut(source: Source) -> bool:
    if source.files:
        return True
    if source.letters or pipes.is_pipe(source.path) or compression_of(source.path) is not None:
        return False
    if source.format == "csv" and source.delimiter not in DELIMITERS:
        return False
    return source.format == "parquet" or not is_remote(source.path)


class _Count(NamedTuple):
    """What a text has, or a file up to some place."""

    bytes: int
    lines: int
    rows: int

    def plus(self, other: _Count) -> _Count:
        return _Count(*map(sum, zip(self, other, strict=True)))


class _Scan:
    """Finds where records of a text file end."""

    def __init__(self, file: BinaryIO, source: Source) -> None:
        self._file = file
        self._source = source
        self._most = _PIECE_BYTES
        mark = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        self._at = _Count(mark, 0, 0)
        if source.format == "csv":
            file.seek(mark)
            self._as_python_reads().header()
            self._at = self._at.plus(self._passed(0))

    def next_part(self, size: int) -> Part:
        """Whole records of at least ``size`` bytes, or the rest."""
        start = self._at
        while self._at.bytes - start.bytes < size and (found := self._records(min(size, self._most))) is not None:
            self._at = self._at.plus(found)
        return Part(start.rows, self._at.rows - start.rows, False, start.bytes, self._at.bytes, start.lines)

    def _records(self, size: int) -> _Count | None:
        """The next records, of about ``size`` bytes; None at the end of the file."""
        self._file.seek(self._at.bytes)
        text = self._file.read(size)
        if text and not text.endswith(b"\n"):
            text += self._file.readline()
        if not text:
            return None
        if self._source.format != "csv":
            return _json_lines(text)
        found = _csv_records(text, self._source.delimiter)
        if found is not None:
            self._most = min(_PIECE_BYTES, self._most * 2)
            return found
        # Text with quotes in odd places is cut smaller, so that little is left to Python's reader.
        self._most = max(_SLOW_BYTES, size // 4)
        return self._records(self._most) if size > self._most else self._slowly()

    def _slowly(self) -> _Count:
        self._file.seek(self._at.bytes)
        rows = 0
        for is_row in self._as_python_reads().are_rows():
            rows += is_row
            if self._file.tell() - self._at.bytes >= _SLOW_BYTES:
                break
        return self._passed(rows)

    def _as_python_reads(self) -> CsvRecords:
        return CsvRecords(iter(self._file.readline, b""), self._source.delimiter, self._source.path, self._at.lines)

    def _passed(self, rows: int) -> _Count:
        """What was read since the last records."""
        size = self._file.tell() - self._at.bytes
        self._file.seek(self._at.bytes)
        return _Count(size, self._file.read(size).count(b"\n"), rows)


def _json_lines(text: bytes) -> _Count:
    whole = text if text.endswith(b"\n") else text + b"\n"
    lines = whole.count(b"\n")
    may_be_blank = text[:1].isspace() or _BEFORE_BLANK.search(text)
    blank = len(_BLANK.findall(b"\n" + whole)) if may_be_blank else 0
    return _Count(len(text), lines, lines - blank)


def _csv_records(text: bytes, delimiter: str) -> _Count | None:
    """The whole records of a text that begins with one; None if only Python's reader can tell them."""
    if b"\0" in text or (b"\r" in text and text.count(b"\r") != text.count(b"\r\n")):
        return None
    characters: Any = numpy.frombuffer(text if text.endswith(b"\n") else text + b"\n", numpy.uint8)
    newlines = ends = numpy.flatnonzero(characters == _NEWLINE)
    if b'"' in text:
        quotes = numpy.flatnonzero(characters == _QUOTE)
        ends = newlines[numpy.searchsorted(quotes, newlines) % 2 == 0]
        if not len(ends) or not encloses_fields(characters, quotes[: numpy.searchsorted(quotes, ends[-1])], delimiter):
            return None
    sizes = numpy.diff(ends, prepend=-1) - 1
    blank = (sizes == 0) | ((sizes == 1) & (characters[ends - 1] == _RETURN))
    stop = int(ends[-1]) + 1
    return _Count(min(stop, len(text)), int(numpy.searchsorted(newlines, stop)), len(ends) - int(blank.sum()))
