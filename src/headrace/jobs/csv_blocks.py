"""Reads CSV as Arrow columns where Arrow agrees with Python's ``csv`` module, and line by line elsewhere.

A few megabytes of text are parsed at a time. A piece that Arrow refuses, or might read differently from Python, is
halved until only few lines are left, which the ``csv`` module reads.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pyarrow
import pyarrow.csv

from headrace.jobs.csv_records import CsvRecords, read_csv
from headrace.jobs.files import Source
from headrace.jobs.text import TextFile, ends_with_returns, in_lists, open_text, whole_lines
from headrace.rows.records import Record

_ARROW_BYTES = 1 << 18
_FEW_LINES = 64
_TYPES = {int: pyarrow.int64(), float: pyarrow.float64()}
_DELIMITERS = ",;\t|:"
_QUOTE, _NEWLINE = b'"\n'


def read_csv_blocks(source: Source, numbers: Mapping[str, type]) -> Iterator[Any]:
    """The rows of a file, as record batches or, where Arrow might read them differently, as lists of records."""
    with open_text(source) as file:
        if ends_with_returns(file.beginning) or source.delimiter not in _DELIMITERS:
            yield from in_lists(read_csv(source, numbers), source)
            return
        text = _Text(file)
        header = CsvRecords(text.lines(), source.delimiter, source.path).header()
        fast = _ArrowParser(source.delimiter, header, numbers)
        while piece := text.take():
            lines = piece.count(b"\n")
            batch = fast.read(piece)
            if batch is not None:
                text.line += lines
                file.position.lines_done = text.line
                yield batch
            elif lines > _FEW_LINES:
                text.give_back(*_halves(piece))
            else:
                text.give_back(piece)
                for records in _records(source, text, lines, header, numbers):
                    file.position.lines_done = text.line
                    yield records


def _records(
    source: Source, text: _Text, lines: int, header: list[str], numbers: Mapping[str, type]
) -> Iterator[list[Record]]:
    """The rows that begin within the next ``lines`` lines; the last row may continue beyond them."""
    stop = text.line + lines
    found = CsvRecords(text.lines(), source.delimiter, source.path, before=text.line).rows(header, numbers)
    records: list[Record] = []
    try:
        while text.line < stop and (row := next(found, None)) is not None:
            records.append(row)
    except ValueError:  # the end of the file, but not of the rows before it
        yield records
        raise
    yield records


class _Text:
    """A file's text, available in pieces of whole lines or line by line.

    Args:
        file: open for reading.
    """

    def __init__(self, file: TextFile) -> None:
        self._coming = whole_lines(file)
        self._pieces: list[bytes] = []
        self._piece, self._place = b"", 0
        self.line = 0
        """How many lines were read; callers of ``take`` add the lines of the piece themselves."""

    def take(self) -> bytes:
        """The next piece; empty at the end of the file."""
        if self._place < len(self._piece):
            self.give_back(self._piece[self._place :])
        self._piece, self._place = b"", 0
        return self._pieces.pop() if self._pieces else next(self._coming, b"")

    def give_back(self, *pieces: bytes) -> None:
        """Returns pieces; the next calls of ``take`` get them first."""
        self._pieces += reversed(pieces)

    def lines(self) -> Iterator[bytes]:
        """Lines with their line ends."""
        while True:
            if self._place == len(self._piece):
                self._piece = self.take()
                if not self._piece:
                    return
            end = self._piece.index(b"\n", self._place) + 1
            line = self._piece[self._place : end]
            self._place = end
            self.line += 1
            yield line


class _ArrowParser:
    """Parses text with Arrow.

    Args:
        delimiter: a single ASCII character.
        header: the column names.
        numbers: the types of the number columns.
    """

    def __init__(self, delimiter: str, header: list[str], numbers: Mapping[str, type]) -> None:
        self._header = header
        self._delimiter = delimiter
        self._kinds = {name: _TYPES[numbers[name]] if name in numbers else pyarrow.string() for name in header}
        self._as_floats = {name: pyarrow.float64() for name, kind in self._kinds.items() if kind == pyarrow.int64()}

    def read(self, text: bytes) -> Any:
        """A record batch of the text; None if Python might read it differently."""
        if not self._header or _is_ambiguous(text, self._delimiter):
            return None
        try:
            # Arrow reads 0x10 as an integer, Python does not. Arrow's floats cannot be hexadecimal: parse once as
            # floats, to fail on such a field.
            if self._as_floats and (b"x" in text or b"X" in text):
                self._parsed(text, self._as_floats)
            return self._parsed(text, self._kinds)
        except pyarrow.ArrowInvalid:
            return None

    def _parsed(self, text: bytes, kinds: Mapping[str, Any]) -> Any:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(text),
            pyarrow.csv.ReadOptions(
                column_names=self._header, block_size=_ARROW_BYTES, use_threads=len(text) > _ARROW_BYTES
            ),
            pyarrow.csv.ParseOptions(delimiter=self._delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=kinds, include_columns=list(kinds), null_values=[""], strings_can_be_null=False
            ),
        )
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


def _is_ambiguous(text: bytes, delimiter: str) -> bool:
    """Whether Arrow and Python might disagree: byte-order marks, "nan(", stray carriage returns, nulls, odd quotes."""
    if text.startswith(codecs.BOM_UTF8):  # Arrow drops it
        return True
    if b"(" in text and re.search(rb"nan\(", text, re.IGNORECASE):  # Arrow reads a number
        return True
    if b"\0" in text or (b"\r" in text and text.count(b"\r") != text.count(b"\r\n")):
        return True
    return b'"' in text and not _is_well_quoted(text, delimiter)


def _is_well_quoted(text: bytes, delimiter: str) -> bool:
    """Whether each quote encloses a whole field on one line, or is doubled within such a field."""
    characters = numpy.frombuffer(text, numpy.uint8)
    quotes = numpy.flatnonzero(characters == _QUOTE)
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    before = numpy.where(opening > 0, characters[opening - 1], _NEWLINE)
    after = characters[closing + 1]  # in bounds: a piece ends with a newline
    outside = [_NEWLINE, ord(delimiter)]
    doubled = numpy.concatenate([[False], opening[1:] == closing[:-1] + 1])
    starts_fields = (numpy.isin(before, outside) | doubled).all()
    ends_fields = (numpy.isin(after, [*outside, ord("\r")]) | numpy.append(doubled[1:], False)).all()
    if not (starts_fields and ends_fields):
        return False
    ends = numpy.flatnonzero(characters == _NEWLINE)
    return bool((numpy.searchsorted(ends, opening) == numpy.searchsorted(ends, closing)).all())


def _halves(piece: bytes) -> tuple[bytes, bytes]:
    """Splits a piece at the line end nearest to its middle."""
    middle = piece.find(b"\n", len(piece) // 2) + 1
    if middle == len(piece):
        middle = piece.rfind(b"\n", 0, len(piece) - 1) + 1
    return piece[:middle], piece[middle:]
