"""Pipes as inputs: read once, while rows arrive, by the process that was given them."""

from __future__ import annotations

import io
import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import ConfigurationError

STDIN = "/dev/stdin"
_ALSO_STDIN = ("-", "/dev/fd/0", "/proc/self/fd/0")
_DESCRIPTORS = ("/dev/fd", "/proc/self/fd")


class EmptyPipeError(ConfigurationError):
    """A pipe ended without a single byte."""


class Pipe:
    """A FIFO or a descriptor of this process, whose beginning can be read repeatedly, until the final reading."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.seen = io.BytesIO()
        """What was read before the final reading."""
        self.is_taken = False
        """Whether the next reading is the final one."""
        self._has_begun = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, as soon as there are any; empty at the end.

        Raises:
            EmptyPipeError: the pipe ended without a single byte.
        """
        if seen := self.seen.read(size):
            return seen
        if self._descriptor is None:
            # An inherited descriptor is used directly: what it refers to (a socket) may have no path.
            own = _own_number(self._path)
            self._descriptor = os.open(self._path, os.O_RDONLY) if own is None else own
        try:
            chunk = os.read(self._descriptor, size)
        except BlockingIOError:  # another process has made the pipe non-blocking
            select.select([self._descriptor], [], [])
            return self.read(size)
        self._has_begun = self._has_begun or bool(chunk)
        # An empty regular file, redirected by the shell, is accepted as it is by path.
        if not self._has_begun and not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise EmptyPipeError(
                f"not a byte came through {as_name(self._path)}: the command that writes into it has most likely "
                "failed; run it by itself to see why. If there are no rows on purpose, give an empty file."
            )
        if self.is_taken:
            self.seen = io.BytesIO()
        else:
            self.seen.write(chunk)
        return chunk

    def close(self) -> None:
        """Closes the descriptor if this object opened it."""
        if self._descriptor is not None and _own_number(self._path) is None:
            os.close(self._descriptor)


_pipes: dict[str, Pipe] = {}
"""The pipes that this process was given, by path."""


def as_path(name: str) -> str:
    """The path for a name given by the user; standard input has several names."""
    return STDIN if name in _ALSO_STDIN else name


def as_name(path: str) -> str:
    """The name of a path in messages: "-" for standard input."""
    return _ALSO_STDIN[0] if path == STDIN else path


def is_pipe(path: str) -> bool:
    """Whether the path names something that can be read only once."""
    return _own_number(path) is not None or stat.S_ISFIFO(_mode(path)) or path == os.devnull


def expect(path: str) -> None:
    """Registers the path for reading by this process, if it is a pipe.

    Raises:
        ConfigurationError: it is neither a file nor a pipe.
    """
    if is_pipe(path):
        _pipes[path] = Pipe(path)
    elif any(is_kind(_mode(path)) for is_kind in (stat.S_ISCHR, stat.S_ISBLK, stat.S_ISSOCK)):
        raise ConfigurationError(f"{path} is a device or a socket, neither a file nor a pipe.")


def take(path: str) -> None:
    """Makes the next reading of a pipe the final one, whose data is not kept."""
    if path in _pipes:
        _pipes[path].is_taken = True


@contextmanager
def opened(path: str) -> Iterator[Pipe]:
    """A pipe, rewound to its beginning.

    Raises:
        OSError: the pipe was read already, or was given to another process.
    """
    if path not in _pipes:
        raise OSError("it is a pipe, which can be read only once, and by the process only that was given it")
    pipe = _pipes[path]
    pipe.seen.seek(0)
    try:
        yield pipe
    finally:
        if pipe.is_taken:
            _pipes.pop(path, None)
            pipe.close()


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0


def _own_number(path: str) -> int | None:
    """The descriptor of this process that a path names."""
    folder, name = os.path.split(path)
    if path == STDIN:
        return 0
    return int(name) if folder in _DESCRIPTORS and name.isdecimal() else None
