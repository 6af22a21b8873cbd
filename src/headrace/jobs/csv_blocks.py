"""Reads CSV as Arrow columns where Arrow agrees with Python's ``csv`` module, and line by line elsewhere.

A few megabytes of text are parsed at a time. A piece that Arrow refuses, or might read differently from Python, is
halved until only few lines are left, which the ``csv`` module reads.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.csv

from headrace.jobs.csv_records import CELL_TYPES, EXACT, FALSE, NESTED, TEXT, TRUE, CsvRecords, value_of
from headrace.jobs.files import Source
from headrace.jobs.opening import TextFile, open_text, whole_lines
from headrace.rows.blocks import Record
from headrace.rows.values import ZERO, numbers_of

_ARROW_BYTES = 1 << 18
_FEW_LINES, _RECORDS = 64, 512
_TYPES = {
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "date": pyarrow.date32(),
    "datetime": pyarrow.timestamp("us"),
}
DELIMITERS = ",;\t|:"
"""Those of files that are read as columns, and in parts."""
_QUOTE, _NEWLINE, _MINUS, _POINT, _ZERO, _NINE = b'"\n-.09'


def read_csv_blocks(source: Source, types: Mapping[str, str]) -> Iterator[Any]:
    """The rows of a file, as record batches or, where Arrow might read them differently, as lists of records."""
    with open_text(source) as file:
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
                file.position.done = file.position.read - text.waiting
                yield batch
            elif lines > _FEW_LINES and fast.is_able:
                text.give_back(*_halves(piece))
            else:
                text.give_back(piece)
                for records in _records(source, text, lines, header, types):
                    file.position.done = file.position.read - text.waiting
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
            if len(records) == _RECORDS:
                yield records
                records = []
    except ValueError:  # the end of the file, but not of the rows before it
        yield records
        raise
    yield records


class _Text:
    """A file's text, available in pieces of whole lines or line by line, the first of which follows ``line`` others."""

    def __init__(self, file: TextFile, line: int = 0) -> None:
        self._coming = whole_lines(file)
        self._pieces: list[bytes] = []
        self._piece, self._place = b"", 0
        self.line = line
        """How many lines were read; callers of ``take`` add the lines of the piece themselves."""

    @property
    def waiting(self) -> int:
        """How many bytes were read ahead."""
        return len(self._piece) - self._place + sum(map(len, self._pieces))

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
    """Parses text with Arrow: numbers, days and times as texts first, to see that nothing of a field is lost."""

    def __init__(self, delimiter: str, header: list[str], types: Mapping[str, str]) -> None:
        self.is_able = bool(header) and delimiter in DELIMITERS and NESTED not in types.values()
        self._header = header
        self._kinds = [types.get(name, TEXT) for name in header]
        self._delimiter = delimiter

    def read(self, text: bytes) -> Any:
        """A record batch of the text; None if Python might read it differently."""
        if not self.is_able or _is_ambiguous(text, self._delimiter):
            return None
        try:
            batch = self._parsed(text)
            columns = list(map(_converted, batch.columns, self._kinds))
        except ValueError:  # of Arrow's, too
            return None
        return pyarrow.RecordBatch.from_arrays(columns, self._header)

    def _parsed(self, text: bytes) -> Any:
        kinds = [pyarrow.bool_() if kind == "bool" else pyarrow.string() for kind in self._kinds]
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(text),
            pyarrow.csv.ReadOptions(
                column_names=self._header, block_size=_ARROW_BYTES, use_threads=len(text) > _ARROW_BYTES
            ),
            pyarrow.csv.ParseOptions(delimiter=self._delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=dict(zip(self._header, kinds, strict=True)),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=TRUE,
                false_values=FALSE,
            ),
        )
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


def _converted(texts: Any, kind: str) -> Any:
    """A column of texts as one of their values; raises ValueError if that cannot be, or a text does not fit."""
    if kind in (TEXT, "bool"):
        return texts
    if kind in ("date", "datetime"):
        fits = pyarrow.compute.match_substring_regex(texts, f"^({CELL_TYPES[kind].pattern.pattern})$")
        if pyarrow.compute.all(fits).as_py() is False:
            raise ValueError(f"a {kind} has another form")
        return texts.cast(_TYPES[kind])
    has_space = _check(texts, _odd_numbers(texts), kind)
    found = (pyarrow.compute.utf8_trim(texts, " \t") if has_space else texts).cast(_TYPES[kind])
    if kind == "float":
        _check(texts, numpy.flatnonzero(numpy.abs(numbers_of(found.fill_null(ZERO))) >= EXACT), kind)
    return found


def _check(texts: Any, places: Any, kind: str) -> bool:
    """Raises ValueError if a text at one of the places does not fit; returns whether one has white space around it."""
    found = [texts[place].as_py() for place in places.tolist()]
    for text in found:
        value_of(kind, text.strip())
    return any(text != text.strip() for text in found)


def _odd_numbers(texts: Any) -> Any:
    """The places of texts with anything but digits, points and signs, or with a leading zero, as codes have it."""
    _, offsets, content = texts.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)[texts.offset : texts.offset + len(texts) + 1]
    characters = numpy.frombuffer(content or b"", numpy.uint8)[: ends[-1]]
    if not len(characters):
        return ends[:0]
    odd = numpy.flatnonzero(characters - _MINUS > _NINE - _MINUS)  # those below the minus wrap around
    first = ends[:-1] + (characters[numpy.minimum(ends[:-1], len(characters) - 1)] == _MINUS)
    behind = numpy.minimum(first + 1, len(characters) - 1)
    has_zero = (first + 1 < ends[1:]) & (characters[behind - 1] == _ZERO) & (characters[behind] != _POINT)
    return numpy.union1d(numpy.flatnonzero(has_zero), numpy.searchsorted(ends, odd, "right") - 1)


def _is_ambiguous(text: bytes, delimiter: str) -> bool:
    """Whether Arrow and Python might disagree: byte-order marks, stray carriage returns, nulls, odd quotes."""
    if text.startswith(codecs.BOM_UTF8):  # Arrow drops it
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
