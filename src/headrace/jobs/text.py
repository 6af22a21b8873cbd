"""Reads text files by line, in linear time, and recognizes other kinds of files by their first bytes."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import BinaryIO, TypeVar

from headrace.jobs import pipes
from headrace.jobs.files import Part, Source, open_source
from headrace.jobs.position import Position, positions

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 22
_ITEMS = 512
_FIRST_BYTES, _LONGEST_BEGINNING = 1 << 16, 1 << 20
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", ".gz", "gzip -dc"),
    b"BZh": ("bzip2", ".bz2", "bzip2 -dc"),
    b"\xfd7zXZ\0": ("xz", ".xz", "xz -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst", "zstd -dc"),
    b"PK\x03\x04": ("ZIP", None, "unzip -p"),
}
"""By first bytes: the format's name, the extension that selects it, and a command that decompresses it."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ROWS_OF_ARRAY = "import json, sys; [print(json.dumps(row)) for row in json.load(sys.stdin)]"


class TextFile:
    """A text file without its byte-order mark, whose beginning was inspected.

    Args:
        file: open for reading.
        file_format: ``csv`` or ``jsonl``.
        position: counts the lines.
    """

    def __init__(self, file: BinaryIO, file_format: str, position: Position | None = None) -> None:
        self._file = file
        self.position = position or Position()
        self.beginning = _first_bytes(file, file_format).removeprefix(codecs.BOM_UTF8)
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
        text = TextFile(file, source.format, positions.get(source.path))
        _refuse_other_kinds(source, text.beginning)
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


def in_lists(items: Iterable[T], source: Source) -> Iterator[list[T]]:
    """Items in lists of some hundreds; the items of a pipe one by one, since they must not wait for others."""
    size = 1 if pipes.is_pipe(source.path) else _ITEMS
    items = iter(items)
    while some := list(islice(items, size)):
        yield some


def lines_of_any_end(file: TextFile) -> Iterator[bytes]:
    r"""Lines with their ends: ``\n``, ``\r\n`` or ``\r``."""
    parts: list[bytes] = []
    held = b""  # a trailing \r, which may be half of \r\n
    while chunk := file.read(_CHUNK_BYTES):
        chunk = held + chunk
        held = b"\r" if chunk.endswith(b"\r") else b""
        for piece in chunk[: len(chunk) - len(held)].splitlines(keepends=True):
            parts.append(piece)
            if piece.endswith((b"\n", b"\r")):
                yield b"".join(parts)
                parts = []
    if rest := b"".join([*parts, held]):
        yield rest


def not_utf8(error: UnicodeDecodeError, source: Source) -> UnicodeDecodeError:
    """The error for a line that cannot be decoded, extended with advice."""
    cure = _converted(source, "iconv -f latin1 -t utf-8")
    error.reason += f"; it is not UTF-8, and if it is Latin-1, convert it: {cure}"
    return error


def ends_with_returns(beginning: bytes) -> bool:
    r"""Whether a CSV file's first line end outside quotes is ``\r`` alone."""
    return _first_end(beginning) == b"\r"


def _first_end(beginning: bytes) -> bytes | None:
    r"""A CSV file's first line end; None if there is none yet, or only what may be half of ``\r\n``."""
    found = re.search(rb"\r?\n|\r(?!\Z)", re.sub(rb'"[^"]*"?', b'"', beginning))
    return found and found[0]


def _first_bytes(file: BinaryIO, file_format: str) -> bytes:
    text = b""
    while len(text) < _LONGEST_BEGINNING and (chunk := file.read(_FIRST_BYTES)):
        text += chunk
        if _first_end(text) if file_format == "csv" else b"\n" in chunk:
            break
    return text


def _refuse_other_kinds(source: Source, beginning: bytes) -> None:
    for magic, (kind, extension, command) in _COMPRESSED.items():
        if beginning.startswith(magic):
            can_be_named = extension is not None and not pipes.is_pipe(source.path)
            cure = f"give it the extension {extension}, or decompress" if can_be_named else "decompress"
            raise ValueError(f"it is compressed ({kind}); {cure} it: {_converted(source, command)}")
    if beginning.startswith(b"PAR1\x15"):
        raise ValueError("it is a Parquet file; add --format parquet")
    if beginning.startswith(_UTF_16) or (beginning[:2].count(0) == 1 and len(beginning) > 1):
        raise ValueError(f"it is UTF-16, not UTF-8; convert it: {_converted(source, 'iconv -f UTF-16 -t UTF-8')}")
    if source.format == "jsonl":
        _refuse_json(source, beginning)


def _refuse_json(source: Source, beginning: bytes) -> None:
    text = beginning.lstrip()
    if text.startswith(b"["):
        command = f'python -c "{_ROWS_OF_ARRAY}"'
        raise ValueError(f"it is one JSON array, not an object on each line; convert it: {_converted(source, command)}")
    if re.match(rb"\{[ \t\r]*\n", text):
        cure = _converted(source, "jq -c .")
        raise ValueError(f"its JSON objects take several lines each, not one; convert it: {cure}")


def _converted(source: Source, command: str) -> str:
    """A command line that converts a source with the given command."""
    if pipes.is_pipe(source.path):
        return f"... | {command} | headrace run - --format {source.format} ..."
    commands = {extension: command for _, extension, command in _COMPRESSED.values()}
    before = commands.get(os.path.splitext(source.path)[1])
    path, extension = shlex.quote(source.path), "tsv" if source.delimiter == "\t" else source.format
    return f"{f'{before} < {path} | {command}' if before else f'{command} < {path}'} > converted.{extension}"
