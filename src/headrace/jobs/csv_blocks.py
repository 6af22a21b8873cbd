"""Reads CSV as Arrow columns where Arrow agrees with Python's ``csv`` module, and line by line elsewhere.

A few megabytes of text are parsed at a time. A piece that Arrow refuses, or might read differently from Python, is
halved until only few lines are left, which the ``csv`` module reads.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.csv

from headrace.jobs.csv_records import CsvRecords, read_csv
from headrace.jobs.csv_types import CELL_TYPES, EXACT, FALSE, NESTED, TEXT, TRUE
from headrace.jobs.files import Source
from headrace.jobs.text import TextFile, ends_with_returns, in_lists, open_text, whole_lines
from headrace.rows.records import Record

_ARROW_BYTES = 1 << 18
_FEW_LINES = 64
_TYPES = {
    TEXT: pyarrow.string(),
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "bool": pyarrow.bool_(),
    "date": pyarrow.date32(),
    "datetime": pyarrow.timestamp("us"),
}
_CACHED_BYTES = 1 << 16
_ODD = r'[ \t"+-]*0[0-9xX]'
_MANY_DIGITS = "^[+-]?[0-9]{16,}$"
DELIMITERS = ",;\t|:"
"""Those of files that are read as columns, and in parts."""
_QUOTE, _NEWLINE, _POINT, _ZERO = b'"\n.0'


def read_csv_blocks(source: Source, types: Mapping[str, str]) -> Iterator[Any]:
    """The rows of a file, as record batches or, where Arrow might read them differently, as lists of records."""
    with open_text(source) as file:
        if ends_with_returns(file.beginning) or source.delimiter not in DELIMITERS or NESTED in types.values():
            yield from in_lists(read_csv(source, types), source)
            return
        text = _Text(file)
        header = CsvRecords(text.lines(), source.delimiter, source.path).header()
        if source.part is not None:
            text = _Text(file, file.go_to(source.part))
        fast = _ArrowParser(source.delimiter, header, types)
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
                for records in _records(source, text, lines, header, types):
                    file.position.lines_done = text.line
                    yield records


def _records(
    source: Source, text: _Text, lines: int, header: list[str], types: Mapping[str, str]
) -> Iterator[list[Record]]:
    """The rows that begin within the next ``lines`` lines; the last row may continue beyond them."""
    stop = text.line + lines
    found = CsvRecords(text.lines(), source.delimiter, source.path, before=text.line).rows(header, types)
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
        line: how many lines were read before.
    """

    def __init__(self, file: TextFile, line: int = 0) -> None:
        self._coming = whole_lines(file)
        self._pieces: list[bytes] = []
        self._piece, self._place = b"", 0
        self.line = line
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
        types: of the columns that do not hold text.
    """

    def __init__(self, delimiter: str, header: list[str], types: Mapping[str, str]) -> None:
        self._header = header
        self._delimiter = delimiter
        self._kinds = {name: _TYPES[types.get(name, TEXT)] for name in header}
        self._patterns = {name: CELL_TYPES[types[name]].pattern for name in header if types.get(name, TEXT) != TEXT}
        self._has_times = any(types.get(name) in ("date", "datetime") for name in header)

    def read(self, text: bytes) -> Any:
        """A record batch of the text; None if Python might read it differently."""
        if not self._header or _is_ambiguous(text, self._delimiter):
            return None
        try:
            batch = self._parsed(text, self._kinds)
            return batch if not self._patterns or self._is_exact(text, batch) else None
        except pyarrow.ArrowInvalid:
            return None

    def _is_exact(self, text: bytes, batch: Any) -> bool:
        """Whether nothing of a field is lost; looks at fields only where something might be."""
        most = max(map(_most, batch.columns))
        if most == math.inf:  # or what is too large for a float
            return False
        if not (self._has_times or most >= EXACT or _has_odd_numbers(text, self._delimiter)):
            return True
        fields = self._parsed(text, dict.fromkeys(self._patterns, pyarrow.string()))
        return all(map(_all_match, fields.columns, self._patterns.values()))

    def _parsed(self, text: bytes, kinds: Mapping[str, Any]) -> Any:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(text),
            pyarrow.csv.ReadOptions(
                column_names=self._header, block_size=_ARROW_BYTES, use_threads=len(text) > _ARROW_BYTES
            ),
            pyarrow.csv.ParseOptions(delimiter=self._delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=kinds,
                include_columns=list(kinds),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=TRUE,
                false_values=FALSE,
            ),
        )
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


def _has_odd_numbers(text: bytes, delimiter: str) -> bool:
    """Whether a field begins like a number with a leading zero, or a hexadecimal one (which Arrow reads, too)."""
    if delimiter < "." and not _may_have_odd_numbers(text):
        return False
    ends = pyarrow.py_buffer(numpy.array([0, len(text)], numpy.int32))  # pyarrow.array would import pandas
    whole = pyarrow.Array.from_buffers(pyarrow.binary(), 1, [None, ends, pyarrow.py_buffer(text)])
    begins = rf"(^|[\n{re.escape(delimiter)}]){_ODD}"
    return bool(pyarrow.compute.match_substring_regex(whole, begins)[0].as_py())


def _may_have_odd_numbers(text: bytes) -> bool:
    """Looks for a zero between a character that sorts before the point, and a digit or x: four times as fast."""
    characters = numpy.frombuffer(text, numpy.uint8)
    for start in range(0, len(text), _CACHED_BYTES):
        some = characters[max(0, start - 3) : start + _CACHED_BYTES]
        before, after = some[1:-2], some[3:]
        followed = (after - _ZERO < 10) | (after | 0x20 == ord("x"))
        places = numpy.flatnonzero((some[2:-1] == _ZERO) & (before < _POINT) & followed)
        is_exponent = (some[places] | 0x20 == ord("e")) & (before[places] != ord(",")) & (before[places] != _NEWLINE)
        if not is_exponent.all():
            return True
    return re.match(_ODD.encode(), text) is not None


def _most(column: Any) -> float:
    """The largest magnitude of a column of floats; 0 of others."""
    if column.type != pyarrow.float64():
        return 0.0
    ends = pyarrow.compute.min_max(column).as_py().values()
    return max(abs(float(end or 0)) for end in ends)


def _all_match(fields: Any, pattern: re.Pattern[str]) -> bool:
    """Whether all fields that are not blank match, and none is so long a number that a float would lose digits."""
    texts = pyarrow.compute.utf8_trim(fields, " \t")
    matching = pyarrow.compute.match_substring_regex(texts, rf"^(?:{pattern.pattern})?$")
    long = pyarrow.compute.match_substring_regex(texts, _MANY_DIGITS)
    return not (pyarrow.compute.any(long).as_py() or pyarrow.compute.all(matching).as_py() is False)


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
    if not encloses_fields(characters, quotes, delimiter):
        return False
    ends = numpy.flatnonzero(characters == _NEWLINE)
    return bool((numpy.searchsorted(ends, quotes[0::2]) == numpy.searchsorted(ends, quotes[1::2])).all())


def encloses_fields(characters: Any, quotes: Any, delimiter: str) -> bool:
    """Whether each two of the quotes, at these places, enclose a whole field, or are doubled within such a field."""
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    before = numpy.where(opening > 0, characters[opening - 1], _NEWLINE)
    after = characters[closing + 1]  # in bounds: a piece ends with a newline
    outside = [_NEWLINE, ord(delimiter)]
    doubled = numpy.concatenate([[False], opening[1:] == closing[:-1] + 1])
    starts_fields = (numpy.isin(before, outside) | doubled).all()
    ends_fields = (numpy.isin(after, [*outside, ord("\r")]) | numpy.append(doubled[1:], False)).all()
    return bool(starts_fields and ends_fields)


def _halves(piece: bytes) -> tuple[bytes, bytes]:
    """Splits a piece at the line end nearest to its middle."""
    middle = piece.find(b"\n", len(piece) // 2) + 1
    if middle == len(piece):
        middle = piece.rfind(b"\n", 0, len(piece) - 1) + 1
    return piece[:middle], piece[middle:]
