"""Pipes as inputs: read once, as their rows come, by the process that was given them."""

from __future__ import annotations

import io
import os
import select
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.core.errors import ConfigurationError

STDIN = "/dev/stdin"
_ALSO_STDIN = ("-", "/dev/fd/0", "/proc/self/fd/0")
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")


class EmptyPipeError(ConfigurationError):
    """A pipe ended without a byte."""


class Pipe:
    """What comes through a pipe; its beginning can be read again and again, until it is taken.

    Args:
        path: of a FIFO or of a descriptor of this process; opened at the first read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._seen = io.BytesIO()
        self.is_taken = False
        """Whether the next reading is the last one."""
        self.is_silent = False
        """Whether it has ended without a byte."""
        self._has_begun = False

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, as soon as there are any; none at the end.

        Raises:
            EmptyPipeError: there have been none at all.
        """
        if seen := self._seen.read(size):
            return seen
        if self._descriptor is None:
            self._descriptor = _number_of(self._path)
        try:
            chunk = os.read(self._descriptor, size)
        except BlockingIOError:  # whoever shares it wants it so
            select.select([self._descriptor], [], [])
            return self.read(size)
        self._refuse_silence(self._descriptor, chunk)
        if self.is_taken:
            self._seen = io.BytesIO()
        else:
            self._seen.write(chunk)
        return chunk

    def _refuse_silence(self, descriptor: int, chunk: bytes) -> None:
        """An empty file that somebody has opened for this process is as good as its path."""
        self._has_begun = self._has_begun or bool(chunk)
        self.is_silent = not self._has_begun and not stat.S_ISREG(os.fstat(descriptor).st_mode)
        if self.is_silent:
            raise EmptyPipeError(
                f"not a byte came through {as_name(self._path)}: the command that writes into it has most likely "
                "failed; run it by itself to see why. If there are no rows on purpose, give an empty file."
            )

    def rewind(self) -> None:
        """Goes back to the beginning."""
        self._seen.seek(0)

    def close(self) -> None:
        """Lets go of what this opened itself."""
        if self._descriptor is not None and _own_number(self._path) is None:
            os.close(self._descriptor)


_pipes: dict[str, Pipe] = {}
"""Those that this process was given, by their paths."""
_silent: set[str] = set()


def as_path(name: str) -> str:
    """The path of what the user names; standard input has several names."""
    return STDIN if name in _ALSO_STDIN else name


def as_name(path: str) -> str:
    """What to call a path in a message: the shortest of the names of standard input."""
    return _ALSO_STDIN[0] if path == STDIN else path


def is_pipe(path: str) -> bool:
    """Whether a path stands for something that cannot be read twice."""
    return _own_number(path) is not None or _is(path, stat.S_ISFIFO) or path == os.devnull


def expect(path: str) -> None:
    """Has this process read a path, if it is one of a pipe.

    Raises:
        ConfigurationError: it is neither a file nor a pipe.
    """
    _silent.discard(path)
    if is_pipe(path):
        _pipes[path] = Pipe(path)
    elif _is(path, stat.S_ISCHR, stat.S_ISBLK, stat.S_ISSOCK):
        raise ConfigurationError(f"{path} is a device or a socket, neither a file nor a pipe.")


def take(path: str) -> None:
    """Has the next reading of a path be the last one, if it is one of a pipe; what is read is not kept then."""
    if path in _pipes:
        _pipes[path].is_taken = True


@contextmanager
def opened(path: str) -> Iterator[Pipe]:
    """A pipe, from its beginning.

    Raises:
        OSError: it has been read, or by right of another process can be.
    """
    if path not in _pipes:
        raise OSError("it is a pipe, which can be read only once, and by the process only that was given it")
    pipe = _pipes[path]
    pipe.rewind()
    try:
        yield pipe
    finally:
        if pipe.is_taken:
            _pipes.pop(path, None)
            pipe.close()
            if pipe.is_silent:
                _silent.add(path)


def was_silent(path: str) -> bool:
    """Whether this is a pipe that was read, and through which not a byte came."""
    return path in _silent


def _is(path: str, *kinds: Callable[[int], bool]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return any(kind(mode) for kind in kinds)


def _number_of(path: str) -> int:
    """A descriptor to read; what is behind one that there is, as a socket, has not always a path to open."""
    number = _own_number(path)
    return os.open(path, os.O_RDONLY) if number is None else number


def _own_number(path: str) -> int | None:
    if path == STDIN:
        return 0
    folder, _, name = path.rpartition("/")
    return int(name) if f"{folder}/" in _DESCRIPTORS and name.isdecimal() else None
