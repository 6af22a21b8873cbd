"""Compressed files, read to their very end: one that breaks off, or goes on as something else, is an error."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from apache_beam.io.filesystem import CompressionTypes

_CHUNK_BYTES = 1 << 16
_PADDING = 4
"""Behind a stream of xz may be zeros, so many or a multiple of them."""


class _Kind(NamedTuple):
    """How one kind of compression is undone, stream by stream."""

    make: Callable[[], Any]
    """Makes an object that decompresses one stream; several may follow each other."""
    is_limited: bool = False
    """Whether that returns no more than it is asked for; then there is no file without a stream, either."""
    is_padded: bool = False
    """Whether zeros may follow a stream."""


def _zstd() -> Any:
    import zstandard  # noqa: PLC0415 - only where there is such a file

    return zstandard.ZstdDecompressor().decompressobj()


_KINDS = {
    CompressionTypes.BZIP2: _Kind(bz2.BZ2Decompressor, is_limited=True),
    CompressionTypes.LZMA: _Kind(lzma.LZMADecompressor, is_limited=True, is_padded=True),
    CompressionTypes.DEFLATE: _Kind(zlib.decompressobj),
    CompressionTypes.ZSTD: _Kind(_zstd),
}
_FILES: dict[str, Callable[[Any], Any]] = {
    CompressionTypes.GZIP: gzip.open,
    CompressionTypes.BZIP2: bz2.open,
    CompressionTypes.LZMA: lzma.open,
}
"""Python's own files, which can be read from the end. Of them gzip's alone say what follows the last stream."""


def decompressed(file: Any, compression: str, *, seekable: bool) -> BinaryIO:
    """An open file, uncompressed.

    Args:
        file: open for reading.
        compression: as Beam calls it.
        seekable: for a reader that begins at the end, which finds out itself what is missing there.
    """
    if compression in _FILES and (seekable or compression not in _KINDS):
        return _FILES[compression](file)  # type: ignore[no-any-return]
    opened: Any = _Decompressed(file, _KINDS[compression]) if compression in _KINDS else file
    return opened  # type: ignore[no-any-return]


class _Decompressed:
    """A file, decompressed piece by piece: all of its streams, one behind the other."""

    def __init__(self, file: Any, kind: _Kind) -> None:
        self._file = file
        self._kind = kind
        self._stream = kind.make()
        self._rest = b""
        self._is_within = kind.is_limited
        """Whether the file cannot end here."""
        self._is_behind = False
        """Whether what comes is behind a whole stream."""

    def read(self, size: int) -> bytes:
        """Some bytes; none at the end.

        Raises:
            EOFError: the file ends within a stream.
            Exception: what it holds is no such stream.
        """
        while True:
            if self._stream.eof:
                self._rest, self._stream = self._behind(self._stream.unused_data), self._kind.make()
                self._is_within, self._is_behind = False, True
            chunk = b""
            if getattr(self._stream, "needs_input", True):
                chunk, self._rest = self._rest or self._file.read(_CHUNK_BYTES), b""
                if not chunk and self._is_within:
                    raise EOFError("the compressed file ends before its end marker; it is not complete")
                if not chunk:
                    return b""
            text = self._decompress(chunk, size)
            self._is_within, self._is_behind = True, False
            if text:
                return bytes(text)

    def _decompress(self, chunk: bytes, size: int) -> Any:
        try:
            return self._stream.decompress(chunk, size) if self._kind.is_limited else self._stream.decompress(chunk)
        except Exception as error:
            if not self._is_behind:
                raise
            raise _something_else(error) from error

    def _behind(self, rest: bytes) -> bytes:
        """What follows a stream, but for padding."""
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
