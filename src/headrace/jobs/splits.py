"""Cuts files into parts for several workers: ranges of bytes of text, and of rows of Parquet.

Parts know their first row and line, so places of rows and dead letters are those of the whole file, however it is cut.
To know them this process looks for line ends once, at a gigabyte or so a second, while workers are at the first parts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy

from headrace.jobs import pipes
from headrace.jobs.csv_blocks import DELIMITERS, record_ends
from headrace.jobs.csv_records import CsvRecords
from headrace.jobs.files import Part, Source, compression_of, known_size
from headrace.jobs.opening import ALMOST, TextLines, open_source, open_text
from headrace.jobs.reading import parquet_file
from headrace.jobs.storage import is_remote

_FEWEST_BYTES, _MOST_BYTES = 1 << 12, 1 << 26
_PARTS_LEFT = 4
"""A part is so much of what is left that about this many follow for each worker: the last parts are small, so that all
workers end at about the same time."""
_EQUAL_SHARE = 32
"""The last 32nd of the input is cut into equal parts: smaller ones would each cost a small batch."""
_PIECE_BYTES, _SLOW_BYTES = 1 << 22, 1 << 16
_RETURN = ord("\r")
_BLANK = re.compile(rb"(?<=\n)[ \t\r\x0b\x0c]*\n")
_BEFORE_BLANK = re.compile(rb"\n[ \t\r\n\x0b\x0c]")
"""How a line begins that may be blank: to look for that is ten times as fast."""


def part_bytes(left: int, total: int, workers: int) -> int:
    """How large the next part is, of so many bytes that are left."""
    return max(_FEWEST_BYTES, min(_MOST_BYTES, max(left, total // _EQUAL_SHARE) // (_PARTS_LEFT * workers)))


class Splits:
    """The parts of a job's files, in order, and how much of them is done; a file that cannot be cut is one part."""

    def __init__(self, sources: Sequence[Source], workers: int) -> None:
        self._sources = sources
        self._workers = workers
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

    @property
    def is_much_left(self) -> bool:
        """Whether the next part is none of the last, small ones, which go to whoever is done first."""
        return self._next_bytes() > part_bytes(0, self._total, self._workers)

    def at(self, rows: int) -> float | None:
        """The share of the input, from 0 to 1, that so many rows are; None if that is unknown."""
        if None in self._sizes or not self._rows:
            return None
        return min((self.earlier_rows + rows) / self._rows * (1 - self._left / self._total), ALMOST)

    def _of(self, source: Source, size: int | None) -> Iterator[Part]:
        if not size:
            return iter(())
        if source.files:
            return self._of_rows(range(1, len(source.files) + 1), size)
        if source.format != "parquet":
            return self._of_text(source, size)
        with open_source(source) as file:
            metadata = parquet_file(file).metadata
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return self._of_rows(list(accumulate(groups)), size)

    def _next_bytes(self) -> int:
        return part_bytes(self._left, self._total, self._workers)

    def _of_rows(self, ends: Sequence[int], size: int) -> Iterator[Part]:
        """Whole row groups with these ends, or a few pieces of a large one: each is read from its beginning."""
        before, row, total = self._left, 0, ends[-1] if ends else 0
        while row < total:
            group = bisect_right(ends, row)
            of_group = ends[group] - (ends[group - 1] if group else 0)
            fewest = min(of_group // (_PARTS_LEFT * self._workers), ends[group] - row)
            stop = row + max(1, self._next_bytes() * total // size, fewest)
            if stop >= ends[group]:
                stop = ends[max(group, bisect_right(ends, stop) - 1)]
            self._left = before - size * stop // total
            yield Part(row, stop - row, stop == total)
            row = stop

    def _of_text(self, source: Source, size: int) -> Iterator[Part]:
        before = self._left
        with open_text(source) as lines:
            scan = _Scan(lines, source)
            while (part := scan.next_part(self._next_bytes())).stop > part.start:
                self._left = before - min(size, part.stop)
                yield part._replace(is_last=part.stop >= size)


def _can_cut(source: Source) -> bool:
    if source.files:
        return True
    if source.letters or pipes.is_pipe(source.path) or compression_of(source.path) is not None:
        return False
    if source.format == "csv" and source.delimiter not in DELIMITERS:
        return False
    return source.format == "parquet" or not is_remote(source.path)


class _Scan:
    """Finds where records of a text file end."""

    def __init__(self, lines: TextLines, source: Source) -> None:
        self._lines = lines
        self._source = source
        self._row = 0
        self._most = _PIECE_BYTES
        if source.format == "csv":
            self._as_python_reads().header()

    def next_part(self, size: int) -> Part:
        """Whole records of at least ``size`` bytes, or the rest."""
        lines = self._lines
        row, line, start = self._row, lines.line, lines.bytes
        while lines.bytes - start < size and (text := lines.ahead(min(size, self._most))):
            self._row += self._take_json(text) if self._source.format == "jsonl" else self._take_csv(text)
        return Part(row, self._row - row, False, lines.start + start, lines.start + lines.bytes, line)

    def _take_json(self, text: bytes) -> int:
        """Takes the lines of a text; returns how many rows they are."""
        self._lines.take(text)
        may_be_blank = text[:1].isspace() or _BEFORE_BLANK.search(text)
        return text.count(b"\n") - (len(_BLANK.findall(b"\n" + text)) if may_be_blank else 0)

    def _take_csv(self, text: bytes) -> int:
        """Takes the records of a text, but for those that need Python's reader: next time there are fewer."""
        ends = record_ends(text, self._source.delimiter)
        if len(ends):
            self._most = min(_PIECE_BYTES, self._most * 2)
            self._lines.take(text[: ends[-1] + 1])
            sizes = numpy.diff(ends, prepend=-1) - 1
            blank = (sizes == 0) | ((sizes == 1) & (numpy.frombuffer(text, numpy.uint8)[ends - 1] == _RETURN))
            return len(ends) - int(blank.sum())
        if self._most > _SLOW_BYTES:
            self._most = max(_SLOW_BYTES, min(self._most, len(text)) // 4)
            return 0
        return self._take_slowly(len(text))

    def _take_slowly(self, size: int) -> int:
        stop, rows = self._lines.bytes + size, 0
        for is_row in self._as_python_reads().are_rows():
            rows += is_row
            if self._lines.bytes >= stop:
                break
        return rows

    def _as_python_reads(self) -> CsvRecords:
        return CsvRecords(self._lines, self._source.delimiter, self._source.path, self._lines.line)
