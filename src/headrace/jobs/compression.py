"""Compressed files, read to their very end: one that is cut off, or followed by something else, raises an error."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from headrace.jobs import storage

_SUFFIXES = {
    ".gz": "gzip",
    ".bz2": "bzip2",
    ".xz": "lzma",
    ".lzma": "lzma",
    ".deflate": "deflate",
    ".zst": "zstd",
    ".zstd": "zstd",
}
_CHUNK_BYTES = 1 << 16
_PADDING = 4
"""Zeros may follow an xz stream; their number must be a multiple of this."""


class _Kind(NamedTuple):
    """How to decompress one format, stream by stream."""

    make: Callable[[], Any]
    """Makes a decompressor of one stream; a file may contain several."""
    is_limited: bool = False
    """Whether ``decompress`` accepts a limit on its output. Such formats have no empty files: at least one stream."""
    is_padded: bool = False
    """Whether zeros may follow a stream."""


def _zstd() -> Any:
    import zstandard  # noqa: PLC0415 - only where there is such a file

    return zstandard.ZstdDecompressor().decompressobj()


_KINDS = {
    "bzip2": _Kind(bz2.BZ2Decompressor, is_limited=True),
    "lzma": _Kind(lzma.LZMADecompressor, is_limited=True, is_padded=True),
    "deflate": _Kind(zlib.decompressobj),
    "zstd": _Kind(_zstd),
}
_FILES: dict[str, Callable[[Any], Any]] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "lzma": lzma.open,
}
"""Python's file classes, which are seekable. Only gzip's raises for trailing data."""


def compression_of(path: str) -> str | None:
    """The compression by file extension: gzip, bzip2, lzma, deflate, zstd; None: none."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.lower().endswith(suffix)), None)


def create_compressed(path: str) -> BinaryIO:
    """Opens a file for writing; compresses according to its extension."""
    kind = compression_of(path)
    if kind is None:
        return storage.create(path)
    writer: BinaryIO = _Compressed(storage.create(path), kind)  # type: ignore[assignment]
    return writer


def decompressed(file: Any, compression: str | None, *, seekable: bool) -> BinaryIO:
    """A decompressing reader of an open file.

    Args:
        file: open for reading.
        compression: from ``compression_of``.
        seekable: whether the caller seeks from the end, and so notices itself if the end is missing.
    """
    if compression in _FILES and (seekable or compression not in _KINDS):
        return _FILES[compression](file)  # type: ignore[no-any-return]
    opened: Any = _Decompressed(file, _KINDS[compression]) if compression in _KINDS else file
    return opened  # type: ignore[no-any-return]


class _Decompressed:
    """Decompresses a file incrementally, all of its streams one after the other."""

    def __init__(self, file: Any, kind: _Kind) -> None:
        self._file = file
        self._kind = kind
        self._stream = kind.make()
        self._rest = b""
        self._in_stream = kind.is_limited
        """Whether the end of the file would now be an error."""
        self._after_stream = False
        """Whether the next data follows a complete stream."""

    def read(self, size: int) -> bytes:
        """Some bytes; empty at the end.

        Raises:
            EOFError: the file ends within a stream.
            Exception: the data is not in this format.
        """
        while True:
            if self._stream.eof:
                self._rest, self._stream = self._behind(self._stream.unused_data), self._kind.make()
                self._in_stream, self._after_stream = False, True
            chunk = b""
            if getattr(self._stream, "needs_input", True):
                chunk, self._rest = self._rest or self._file.read(_CHUNK_BYTES), b""
                if not chunk and self._in_stream:
                    raise EOFError("the compressed file ends before its end marker; it is not complete")
                if not chunk:
                    return b""
            text = self._decompress(chunk, size)
            self._in_stream, self._after_stream = True, False
            if text:
                return bytes(text)

    def _decompress(self, chunk: bytes, size: int) -> Any:
        try:
            return self._stream.decompress(chunk, size) if self._kind.is_limited else self._stream.decompress(chunk)
        except Exception as error:
            if not self._after_stream:
                raise
            raise _something_else(error) from error

    def _behind(self, rest: bytes) -> bytes:
        """The data after a stream, without padding."""
        zeros, content = 0, rest
        while self._kind.is_padded:
            content = rest.lstrip(b"\0")
            zeros += len(rest) - len(content)
            if content or not (rest := self._file.read(_CHUNK_BYTES)):
                break
        if zeros % _PADDING:
            raise _something_else(f"{zeros} zeros")
        return content


def _something_else(what: Any) -> OSError:
    return OSError(
        f"behind the end of what is compressed comes something else ({what}); cut it off, or, if it is a file of its "
        "own, name both files"
    )


class _Compressed:
    """A file that compresses what is written; closing it ends the stream.

    Args:
        file: open for writing; closed with this one.
        kind: from ``compression_of``.
    """

    def __init__(self, file: BinaryIO, kind: str) -> None:
        self._file = file
        self._gzip = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if kind == "gzip" else None
        self._stream: Any = None if self._gzip is not None else _compressor(kind)

    def write(self, content: Any) -> int:
        """Writes bytes."""
        if self._gzip is not None:
            return self._gzip.write(content)
        self._file.write(self._stream.compress(content))
        return len(content)

    def close(self) -> None:
        """Ends the stream and closes the file; may be called repeatedly."""
        if self._file.closed:
            return
        try:
            if self._gzip is not None:
                self._gzip.close()
            else:
                self._file.write(self._stream.flush())
        finally:
            self._file.close()

    def __enter__(self) -> _Compressed:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _compressor(kind: str) -> Any:
    if kind == "zstd":
        import zstandard  # noqa: PLC0415 - only where there is such a file

        return zstandard.ZstdCompressor().compressobj()
    make: dict[str, Any] = {"bzip2": bz2.BZ2Compressor, "lzma": lzma.LZMACompressor, "deflate": zlib.compressobj}
    return make[kind]()
