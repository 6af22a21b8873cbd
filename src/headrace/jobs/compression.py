"""Compressed files, read to their very end: one that is cut off, or followed by something else, raises an error."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO

from headrace.jobs import storage

_SUFFIXES = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".lzma": "xz", ".zst": "zstd", ".zstd": "zstd"}
_CHUNK_BYTES = 1 << 16
_STREAMS: dict[str, Callable[[], Any]] = {"bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}
_SEEKABLE: dict[str, Callable[[Any], Any]] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}


def compression_of(path: str) -> str | None:
    """The compression by file extension: gzip, bz2, xz or zstd; None: none."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.lower().endswith(suffix)), None)


def decompressed(file: Any, compression: str | None, *, seekable: bool) -> Any:
    """A decompressing reader of an open file.

    Args:
        file: open for reading.
        compression: from ``compression_of``.
        seekable: whether the caller seeks from the end, and so notices itself if the end is missing.
    """
    if compression is None:
        return file
    if compression == "gzip" or (seekable and compression in _SEEKABLE):
        return _SEEKABLE[compression](file)
    if compression in _STREAMS:
        return _Streams(file, _STREAMS[compression])
    import pyarrow  # noqa: PLC0415 - only where there is such a file

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), compression)


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
                chunk = self._stream.unused_data or self._file.read(_CHUNK_BYTES)
                if not chunk:
                    return b""
                self._stream = self._make()
            elif self._stream.needs_input:
                chunk = self._file.read(_CHUNK_BYTES)
                if not chunk:
                    raise EOFError("the compressed file ends before its end marker; it is not complete")
            if text := self._stream.decompress(chunk, size):
                return bytes(text)


def create_compressed(path: str) -> BinaryIO:
    """Opens a file for writing; compresses according to its extension."""
    kind, file = compression_of(path), storage.create(path)
    return file if kind is None else _Compressed(file, _compressor(file, kind))  # type: ignore[return-value]


class _Compressed:
    """A file that compresses what is written; closing it ends the stream, and closes the file below."""

    def __init__(self, file: BinaryIO, stream: Any) -> None:
        self._file = file
        self._stream = stream
        self.write = stream.write

    def close(self) -> None:
        """May be called repeatedly."""
        if not self._file.closed:
            try:
                self._stream.close()
            finally:
                self._file.close()

    def __enter__(self) -> _Compressed:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _compressor(file: Any, kind: str) -> Any:
    if kind == "gzip":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if kind == "zstd":
        import pyarrow  # noqa: PLC0415 - only where there is such a file

        return pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, mode="w"), kind)
    return bz2.BZ2File(file, "wb") if kind == "bz2" else lzma.LZMAFile(file, "wb")
