"""Opens files, decompressed and read to their very end, and follows how much of the input a run has done.

Files are read ahead of the model. So of the share that has been read, as much is done as of its rows is answered.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from pyarrow import CompressedInputStream, CompressedOutputStream, PythonFile

from headrace.jobs import pipes, storage
from headrace.jobs.files import Part, Source, compression_of

_PIECE_BYTES = 1 << 22
_COMPRESSED_BYTES = 1 << 16
_FIRST_BYTES, _LONGEST_BEGINNING = 1 << 16, 1 << 20
_STREAMS: dict[str, Callable[[], Any]] = {"bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}
_UTF_16 = "it is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8"
_OTHER_KINDS = {
    b"\x1f\x8b": "it is compressed (gzip); give it the extension .gz, or decompress it",
    b"BZh": "it is compressed (bzip2); give it the extension .bz2, or decompress it",
    b"\xfd7zXZ\0": "it is compressed (xz); give it the extension .xz, or decompress it",
    b"\x28\xb5\x2f\xfd": "it is compressed (zstd); give it the extension .zst, or decompress it",
    b"PK\x03\x04": "it is a ZIP archive; unpack it",
    b"PAR1\x15": "it is a Parquet file; add --format parquet",
    codecs.BOM_UTF16_LE: _UTF_16,
    codecs.BOM_UTF16_BE: _UTF_16,
}
"""What a file is and how to read it, by its first bytes."""
ALMOST = 0.999
"""The most of its input that a run has done while it is at work."""


@dataclass
class Position:
    """How far a file is read."""

    file: Any = None
    """A text file as it is stored, compressed perhaps."""
    read: int = 0
    """The bytes that were read of a text, decompressed; or the rows of a whole file of another format."""
    done: int = 0
    """How many of these have become rows. The others are read ahead: they may be all of a small file."""
    stored: int | None = None
    """The bytes of the file that were read for them; None: all."""
    rows: int = 0
    """How many rows there are in the blocks that were made, and before these."""

    def add(self, text: bytes) -> bytes:
        """A text, once it is noted that it was read."""
        self.read += len(text)
        self.stored = None if self.file is None else self.file.tell()
        return text

    def part(self, size: int) -> float:
        """The share of a file of this many bytes that has been read as rows, from 0 to 1."""
        stored = 1.0 if self.stored is None or not size else self.stored / size
        return min(1.0, self.done / max(1, self.read) * stored)


positions: dict[str, Position] = {}
"""By path; of the last time that the file was opened."""


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """The decompressed file. Unlike Beam's, reading raises if the file is cut off or followed by something else.

    Raises:
        OSError: it cannot be opened.
    """
    compression = compression_of(source.path)
    if pipes.is_pipe(source.path):
        with pipes.opened(source.path) as pipe:
            yield _decompressed(pipe, compression)
        return
    with storage.open_file(source.path) as file:
        positions[source.path] = Position(file)
        yield _decompressed(file, compression)


def _decompressed(file: Any, compression: str | None) -> Any:
    if compression == "gzip":
        return gzip.open(file)
    if compression in _STREAMS:
        return _Streams(file, _STREAMS[compression])
    return file if compression is None else CompressedInputStream(PythonFile(file, mode="r"), compression)


class _Streams:
    """Decompresses all streams of a file; Python's own classes pass over what follows them and is none."""

    def __init__(self, file: Any, make: Callable[[], Any]) -> None:
        self._file = file
        self._make = make
        self._stream = make()

    def read(self, size: int) -> bytes:
        """Some bytes; empty at the end."""
        while True:
            chunk = b""
            if self._stream.eof:
                chunk = self._stream.unused_data or self._file.read(_COMPRESSED_BYTES)
                if not chunk:
                    return b""
                self._stream = self._make()
            elif self._stream.needs_input:
                chunk = self._file.read(_COMPRESSED_BYTES)
                if not chunk:
                    raise EOFError("the compressed file ends before its end marker; it is not complete")
            if text := self._stream.decompress(chunk, size):
                return bytes(text)


@contextmanager
def create_compressed(path: str) -> Iterator[BinaryIO]:
    """A new file for writing, compressed according to its extension."""
    with closing(storage.create(path)) as file, closing(_compressing(file, compression_of(path))) as compressed:
        yield compressed


def _compressing(file: Any, compression: str | None) -> Any:
    if compression == "gzip":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if compression == "xz":
        return lzma.LZMAFile(file, "wb")
    return file if compression is None else CompressedOutputStream(PythonFile(file, mode="w"), compression)


class TextLines:
    """The lines of a text file, which can be looked at before they are taken; iterating takes one after the other.

    A byte-order mark at the file's beginning is passed over; ``position`` counts the bytes.
    """

    def __init__(self, file: BinaryIO, position: Position | None = None) -> None:
        self._file = file
        self._position = position or Position()
        beginning = b""
        while b"\n" not in beginning and len(beginning) < _LONGEST_BEGINNING and (chunk := file.read(_FIRST_BYTES)):
            beginning += chunk
        self.beginning = beginning.removeprefix(codecs.BOM_UTF8)
        """At least the first line, unless it is longer than a megabyte."""
        self.start = len(beginning) - len(self.beginning)
        """Where it begins in the file, in bytes."""
        self._coming = self._read_pieces(self.beginning, sys.maxsize)
        self._texts: deque[bytes] = deque()
        """Read, but not all taken: of the first one ``_start`` bytes are."""
        self._start = 0
        self._error: Exception | None = None
        """Why nothing can be read behind the texts."""
        self.line = 0
        """How many lines were taken, and those before."""
        self.bytes = 0
        """How many were taken."""

    def go_to(self, part: Part) -> None:
        """Moves to a part, behind which the file seems to end."""
        self._file.seek(part.start)
        self._coming = self._read_pieces(b"", part.stop - part.start)
        self._texts.clear()
        self._start, self.line = 0, part.line

    def ahead(self, size: int = sys.maxsize, skip: int = 0) -> bytes:
        """The next lines without taking them: about ``size`` bytes of what has been read; empty at the end.

        Of lines to pass over there are ``skip`` bytes: an error behind them is raised once they were taken.
        """
        start = self._start + skip
        for text in self._texts:
            if start < len(text):
                break
            start -= len(text)
        else:
            text = self._one_more(must=not skip)
        end = text.find(b"\n", start + size - 1) + 1
        return text[start : end or len(text)]

    def take(self, text: bytes, lines: int | None = None) -> None:
        """Consumes ``text``, the next lines; ``lines`` is their number, None if it has to be counted."""
        self._start += len(text)
        while self._texts and self._start >= len(self._texts[0]):
            self._start -= len(self._texts.popleft())
        self.bytes += len(text)
        self.line += text.count(b"\n") if lines is None else lines
        self._position.done += len(text)

    def __iter__(self) -> Iterator[bytes]:
        """Lines with their ends."""
        return self.pieces(1)

    def pieces(self, size: int = sys.maxsize) -> Iterator[bytes]:
        """Consumes whole lines, about ``size`` bytes at a time."""
        while text := self.ahead(size):
            self.take(text)
            yield text

    def _one_more(self, *, must: bool) -> bytes:
        """One more piece; empty at the end, or if it cannot be read: ``must`` it be, that is raised."""
        try:
            text = b"" if self._error else next(self._coming, b"")
        except Exception as error:
            text, self._error = b"", error
        if self._error and must:
            raise self._error
        if text:
            self._texts.append(text)
        return text

    def _read_pieces(self, chunk: bytes, left: int) -> Iterator[bytes]:
        """Whole lines, as soon as they were read; the last line gets an end if it has none."""
        parts: list[bytes] = []  # of an unfinished line
        while chunk := chunk or self._file.read(min(_PIECE_BYTES, left)):
            left -= len(chunk)
            end = chunk.rfind(b"\n") + 1
            if end:
                yield self._position.add(b"".join([*parts, memoryview(chunk)[:end]]))
                parts = []
            parts.append(chunk[end:])
            chunk = b""
        if rest := b"".join(parts):
            yield self._position.add(rest + b"\n")


@contextmanager
def open_text(source: Source) -> Iterator[TextLines]:
    """The lines of a decompressed text file.

    Raises:
        ValueError: it begins like another kind of file; the message says what to do.
    """
    with open_source(source) as file:
        lines = TextLines(file, positions.get(source.path))
        if wrong := _wrong_kind(lines.beginning, source.format):
            raise ValueError(wrong)
        yield lines


def not_utf8(error: UnicodeDecodeError) -> UnicodeDecodeError:
    """The error for a line that cannot be decoded, extended with advice."""
    error.reason += "; it is not UTF-8, and if it is Latin-1, convert it: iconv -f latin1 -t utf-8"
    return error


def _wrong_kind(beginning: bytes, file_format: str) -> str | None:
    """What a file is, and how to convert it, if it does not begin like a text file of its format."""
    for first, kind in _OTHER_KINDS.items():
        if beginning.startswith(first):
            return kind
    if beginning[:2].count(0) == 1 and len(beginning) > 1:
        return _UTF_16
    if file_format == "csv":
        has_returns = b"\r" in beginning[:-1] and b"\n" not in beginning
        return "its lines end in \\r alone; convert it: tr '\\r' '\\n'" if has_returns else None
    text = beginning.lstrip()
    if text.startswith(b"["):
        return "it is one JSON array, not an object on each line; convert it: jq -c '.[]'"
    if re.match(rb"\{[ \t\r]*\n", text):
        return "its JSON objects take several lines each, not one; convert it: jq -c ."
    return None


class InputShare:
    """The share of one run's input that is done, as far as this process has read it.

    Files have ``sizes`` in bytes; None if nobody knows, as of a pipe. A run may have a ``limit`` of rows.
    """

    def __init__(self, sizes: Mapping[str, int | None], limit: int | None = None) -> None:
        self._limit = limit
        self._sizes = {path: size or 0 for path, size in sizes.items()} if None not in sizes.values() else {}
        self.earlier_rows = 0
        """How many rows need no answer, since earlier runs have done them."""
        for path in sizes:
            positions.pop(path, None)  # of a look at its beginning

    def at(self, rows: int) -> float | None:
        """The share of the input, from 0 to 1, that is done once ``rows`` rows are answered; None if unknown."""
        begun = [(positions[path], size) for path, size in self._sizes.items() if path in positions]
        share, of = None, sum(position.rows for position, _ in begun)
        if of and (total := sum(self._sizes.values())):
            read = sum(position.part(size) * size for position, size in begun)
            share = read / total * min(1.0, (self.earlier_rows + rows) / of)
        if self._limit is not None and (share is not None or rows):
            share = max(share or 0.0, rows / self._limit)
        return share if share is None else min(share, ALMOST)
