"""Reads text files by line, in linear time, and recognizes other kinds of files by their first bytes."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from headrace.jobs.files import Part, Source, open_source
from headrace.jobs.input_share import Position, positions

_PIECE_BYTES = 1 << 22
_FIRST_BYTES, _LONGEST_BEGINNING = 1 << 16, 1 << 20
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


class TextFile:
    """A text file without its byte-order mark, whose beginning was inspected.

    Args:
        file: open for reading.
        position: counts the lines.
    """

    def __init__(self, file: BinaryIO, position: Position | None = None) -> None:
        self._file = file
        self.position = position or Position()
        self.beginning = _first_bytes(file).removeprefix(codecs.BOM_UTF8)
        """At least the first line, unless it is longer than a megabyte."""
        self._rest = self.beginning
        self._left = sys.maxsize
        """Of the part that is read, in bytes."""

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; empty at the end."""
        chunk, self._rest = self._rest[:size], self._rest[size:]
        chunk = chunk or self._file.read(min(size, self._left))
        self._left -= len(chunk)
        return chunk

    def go_to(self, part: Part) -> int:
        """Moves to a part, behind which the file seems to end; returns how many lines come before it."""
        self._file.seek(part.start)
        self._rest, self._left = b"", part.stop - part.start
        return part.line


@contextmanager
def open_text(source: Source) -> Iterator[TextFile]:
    """A decompressed text file.

    Raises:
        ValueError: it begins like another kind of file; the message says what to do.
    """
    with open_source(source) as file:
        text = TextFile(file, positions.get(source.path))
        if wrong := _wrong_kind(text.beginning, source.format):
            raise ValueError(wrong)
        yield text


def whole_lines(file: TextFile) -> Iterator[bytes]:
    """The text in pieces of whole lines, each as soon as it was read; the last line gets an end if it has none."""
    parts: list[bytes] = []  # of an unfinished line
    while chunk := file.read(_PIECE_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            file.position.lines += chunk.count(b"\n")
            yield b"".join([*parts, chunk[:end]])
            parts = []
        parts.append(chunk[end:])
    if rest := b"".join(parts):
        file.position.lines += 1
        yield rest + b"\n"


def not_utf8(error: UnicodeDecodeError) -> UnicodeDecodeError:
    """The error for a line that cannot be decoded, extended with advice."""
    error.reason += "; it is not UTF-8, and if it is Latin-1, convert it: iconv -f latin1 -t utf-8"
    return error


def _first_bytes(file: BinaryIO) -> bytes:
    text = b""
    while b"\n" not in text and len(text) < _LONGEST_BEGINNING and (chunk := file.read(_FIRST_BYTES)):
        text += chunk
    return text


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
