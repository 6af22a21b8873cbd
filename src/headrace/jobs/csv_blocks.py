"""Reads CSV as Arrow columns where Arrow agrees with Python's ``csv`` module, and line by line elsewhere.

Threads parse a few megabytes of text each. Of what Arrow refuses, or might read differently from Python, half as much
is tried, and so on until only few lines are left, which the ``csv`` module reads.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.csv

from headrace.core.phases import Phase, during
from headrace.jobs.csv_records import CELL_TYPES, COMMA, EXACT, FALSE, NESTED, TEXT, TRUE, CsvRecords, value_of
from headrace.jobs.files import Source
from headrace.jobs.opening import TextLines, open_text
from headrace.jobs.pipes import is_pipe
from headrace.rows.blocks import Record
from headrace.rows.values import ZERO, numbers_of

_MOST_BYTES, _LARGEST_BLOCK = 1 << 22, 1 << 30
_FEW_LINES, _RECORDS = 64, 512
_THREADS = 4
"""The most that parse."""
_TYPES = {
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "date": pyarrow.date32(),
    "datetime": pyarrow.timestamp("us"),
}
_PARSED_AS = {TEXT: pyarrow.string(), "bool": pyarrow.bool_()}
"""Others are bytes at first, since no UTF-8 beyond ASCII fits them."""
DELIMITERS = ",;\t|:"
"""Those of files that are read as columns, and in parts."""
_QUOTE, _NEWLINE, _MINUS, _POINT, _ZERO, _NINE = b'"\n-.09'


def read_csv_blocks(source: Source, types: Mapping[str, str]) -> Iterator[Any]:
    """The rows of a file, as record batches or, where Arrow might read them differently, as lists of records."""
    count = min(_THREADS, pyarrow.cpu_count())
    at_once = 1 if is_pipe(source.path) else count + 1  # the rows of a pipe do not wait for others
    with open_text(source) as lines, ThreadPoolExecutor(count, "headrace-columns") as threads:
        header = CsvRecords(lines, source.delimiter, source.path).header()
        if source.part is not None:
            lines.go_to(source.part)
        arrow, size = _ArrowParser(source.delimiter, header, types), _MOST_BYTES
        coming, ahead = deque[tuple[bytes, Future[Any]]](), 0  # the next texts, in threads, and their bytes
        while True:
            most = at_once if size == _MOST_BYTES else 1  # where Arrow refuses much, none are parsed in vain
            while len(coming) < most and (text := arrow.whole_records(lines.ahead(size, ahead))):
                coming.append((text, threads.submit(arrow.read, text)))
                ahead += len(text)
            text, parsed = coming.popleft() if coming else (lines.ahead(size), None)
            if not text:
                return
            if (batch := parsed and parsed.result()) is not None:
                lines.take(text)
                ahead -= len(text)
                yield batch
                size = min(_MOST_BYTES, 2 * size)
                continue
            coming.clear()
            ahead = 0
            if arrow.is_able and text.count(b"\n") > _FEW_LINES:
                size = min(size, len(text)) // 2
            else:
                yield from _as_python_reads(source, lines, text.count(b"\n"), header, types)


def _as_python_reads(
    source: Source, lines: TextLines, count: int, header: list[str], types: Mapping[str, str]
) -> Iterator[list[Record]]:
    """The rows that begin within the next ``count`` lines; the last row may continue beyond them."""
    stop = lines.line + count
    found = CsvRecords(lines, source.delimiter, source.path, before=lines.line).rows(header, types)
    records: list[Record] = []
    try:
        while lines.line < stop and (row := next(found, None)) is not None:
            records.append(row)
            if len(records) == _RECORDS:
                yield records
                records = []
    except Exception:  # the end of the file, but not of the rows before it
        yield records
        raise
    yield records


class _ArrowParser:
    """Parses text with Arrow: numbers, days and times as texts first, to see that nothing of a field is lost."""

    def __init__(self, delimiter: str, header: list[str], types: Mapping[str, str]) -> None:
        self.is_able = bool(header) and delimiter in DELIMITERS and NESTED not in types.values()
        self._header = header
        self._kinds = [types.get(name, TEXT) for name in header]
        self._delimiter = delimiter
        self._options = pyarrow.csv.ConvertOptions(
            column_types={name: _PARSED_AS.get(types.get(name, TEXT), pyarrow.binary()) for name in header},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=TRUE,
            false_values=FALSE,
        )

    def whole_records(self, text: bytes) -> bytes:
        """The whole records at the beginning of a text; empty if only Python's reader can tell."""
        if not self.is_able or _is_odd(text):
            return b""
        if b'"' not in text:
            return text
        ends = record_ends(text, self._delimiter)
        is_likely = len(ends) and 2 * ends[-1] >= len(text)  # else most likely a stray quote
        return text[: ends[-1] + 1] if is_likely else b""

    @during(Phase.READING)
    def read(self, text: bytes) -> Any:
        """The record batch of whole records; None if Python might read others."""
        try:
            table = pyarrow.csv.read_csv(
                pyarrow.BufferReader(text),
                pyarrow.csv.ReadOptions(
                    column_names=self._header, block_size=min(len(text), _LARGEST_BLOCK), use_threads=False
                ),
                pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=b'"' in text),
                self._options,
            )
            texts = [column.combine_chunks() for column in table.columns]
            columns = list(map(_converted, texts, self._kinds))
        except ValueError:  # of Arrow's, too
            return None
        return pyarrow.RecordBatch.from_arrays(columns, self._header)


def _converted(texts: Any, kind: str) -> Any:
    """A column of texts as one of their values; raises ValueError if that cannot be, or a text does not fit."""
    if kind in _PARSED_AS:
        return texts
    texts = texts.view(pyarrow.string())
    if kind in ("date", "datetime"):
        fits = pyarrow.compute.match_substring_regex(texts, f"^({CELL_TYPES[kind].pattern.pattern})$")
        if pyarrow.compute.all(fits).as_py() is False:
            raise ValueError(f"a {kind} has another form")
        return texts.cast(_TYPES[kind])
    if kind == COMMA:
        if pyarrow.compute.any(pyarrow.compute.match_substring(texts, ".")).as_py():
            raise ValueError("a point is no decimal comma")
        texts, kind = pyarrow.compute.replace_substring(texts, ",", "."), "float"
    odd = [texts[place].as_py() for place in _odd_numbers(texts).tolist()]
    has_space = any(text != text.strip() for text in odd)
    found = (pyarrow.compute.utf8_trim(texts, " \t") if has_space else texts).cast(_TYPES[kind])
    if kind == "float":
        large = numpy.flatnonzero(numpy.abs(numbers_of(found.fill_null(ZERO))) >= EXACT)
        odd += [texts[place].as_py() for place in large.tolist()]
    for text in odd:
        value_of(kind, text.strip())
    return found


def _odd_numbers(texts: Any) -> Any:
    """The places of texts with anything but digits, points and signs, or with a leading zero, as codes have it."""
    _, offsets, content = texts.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)[texts.offset : texts.offset + len(texts) + 1].astype(numpy.intp)
    characters = numpy.frombuffer(content or b"", numpy.uint8)[: ends[-1]]
    if not len(characters):
        return ends[:0]
    odd = numpy.flatnonzero(characters - _MINUS > _NINE - _MINUS)  # those below the minus wrap around
    first = ends[:-1] + (characters[numpy.minimum(ends[:-1], len(characters) - 1)] == _MINUS)
    behind = numpy.minimum(first + 1, len(characters) - 1)
    has_zero = (first + 1 < ends[1:]) & (characters[behind - 1] == _ZERO) & (characters[behind] != _POINT)
    return numpy.union1d(numpy.flatnonzero(has_zero), numpy.searchsorted(ends, odd, "right") - 1)


def _is_odd(text: bytes) -> bool:
    """Whether Arrow and Python might disagree on what a line is: byte-order marks, nulls, stray carriage returns."""
    has_returns = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
    return has_returns or b"\0" in text or text.startswith(codecs.BOM_UTF8)


def record_ends(text: bytes, delimiter: str) -> Any:
    """The places of the line ends at which records of a text end, the first of which begins with it.

    There are none if only Python's reader can tell.
    """
    characters: Any = numpy.frombuffer(text, numpy.uint8)
    ends = numpy.flatnonzero(characters == _NEWLINE)
    if _is_odd(text):
        return ends[:0]
    quotes = numpy.flatnonzero(characters == _QUOTE)
    if not len(quotes):
        return ends
    ends = ends[numpy.searchsorted(quotes, ends) % 2 == 0]
    inside = quotes[: numpy.searchsorted(quotes, ends[-1])] if len(ends) else quotes
    return ends if _enclose_fields(characters, inside, delimiter) else ends[:0]


def _enclose_fields(characters: Any, quotes: Any, delimiter: str) -> bool:
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
