"""Moves finished files to their places: all of them or none, and nothing is deleted before its successor is whole.

Local files are synced to the disk before they replace anything, and their folders afterwards. Remote file systems
differ: some replace a file that is in the way, some refuse, and some copy and then delete, so that a move may raise
although the file has arrived.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from headrace.jobs import storage
from headrace.jobs.storage import is_remote

_CHUNK_BYTES = 1 << 20


class PublishError(OSError):
    """A run is done, but its files are not in their places; the message says where they are and how to finish."""


class Move(NamedTuple):
    """A finished file, and where it goes."""

    what: str
    """For people: "the predictions"."""
    source: str
    destination: str

    @property
    def earlier(self) -> str:
        """Beside the finished file: where an earlier one waits that may be needed again."""
        return earlier_of(self.source)


def earlier_of(source: str) -> str:
    """Where ``put_in_place`` keeps what was in the place of a finished file."""
    return f"{source}.earlier"


def put_in_place(moves: Sequence[Move]) -> None:
    """Moves files to their places, in this order; if one cannot be moved, those before it are taken back.

    Where the last one has a local place, another process that moves files there waits until all are moved.

    Args:
        moves: of files that belong together. Each source lies in the file system of its destination.

    Raises:
        PublishError: not all are in their places. Every file, new or earlier, is still somewhere, and the message
            says where.
    """
    with _alone_at(moves[-1].destination):
        _put_in_place(moves)


def _put_in_place(moves: Sequence[Move]) -> None:
    begun: list[Move] = []
    moved: list[Move] = []
    try:
        for move in moves:
            if not is_remote(move.source):
                _sync_file(move.source)
        for move in moves:
            begun.append(move)
            if move is not moves[-1]:
                _keep_earlier(move)
            moved.append(move)
            _replace(move)
    except Exception as error:
        for move in reversed(begun):
            _take_back(move, has_moved=move in moved)
        raise PublishError(f"{_in_words(error)} {_how_to_finish(moves)}") from error
    try:
        for folder in dict.fromkeys(os.path.dirname(move.destination) for move in moves if not is_remote(move.source)):
            sync_folder(folder)
    except OSError as error:
        places = " and ".join(move.destination for move in moves)
        raise PublishError(f"{places} are there, but the disk does not say that they are safe: {error}") from error


@contextmanager
def _alone_at(path: str) -> Iterator[None]:
    """Holds a lock of a local path, if its file system has locks; who had it last removes its file."""
    folder, name = os.path.split(path)
    lock = os.path.join(folder, f".{name}.headrace-lock")
    descriptor = None if is_remote(path) else _locked(lock)
    try:
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                os.remove(lock)
            os.close(descriptor)


def _locked(lock: str) -> int | None:
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # whether anything can be written there, the moves find out
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except FileNotFoundError:  # who had it has removed it
            pass
        except OSError:  # a file system without locks
            return descriptor
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Makes durable which files there are in a local folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _keep_earlier(move: Move) -> None:
    """Keeps what is in a file's place under another name, for the case that a later move fails."""
    if not storage.exists(move.destination):
        return
    if not is_remote(move.destination):
        _discard([move.earlier])
        try:
            os.link(move.destination, move.earlier)
        except OSError:  # a file system without links
            shutil.copy2(move.destination, move.earlier)
        return
    try:
        storage.copy(move.destination, move.earlier)
    except Exception:  # a file system that cannot copy: what is whole under another name is not deleted either
        _discard([move.earlier])
        storage.rename(move.destination, move.earlier)


def _replace(move: Move) -> None:
    """Moves one file; what was in its place stays, there or as ``earlier``, unless the new one has arrived."""
    size = storage.size(move.source)
    try:
        storage.rename(move.source, move.destination)
    except Exception:
        if _has_arrived(move, size):
            return
        if not is_remote(move.destination) or not storage.exists(move.destination):
            raise
    else:
        return
    if storage.exists(move.earlier):
        storage.delete(move.destination)  # of which there is a copy
    else:
        storage.rename(move.destination, move.earlier)
    try:
        storage.rename(move.source, move.destination)
    except Exception:
        if not _has_arrived(move, size):
            raise


def _take_back(move: Move, *, has_moved: bool) -> None:
    """The finished file is where it was, and in its place is the earlier one, or none; as far as possible."""
    with suppress(Exception):
        if not storage.exists(move.source):
            storage.rename(move.destination, move.source)
        elif has_moved and storage.exists(move.destination) and _are_equal(move.source, move.destination):
            storage.delete(move.destination)
        if storage.exists(move.earlier) and not storage.exists(move.destination):
            storage.rename(move.earlier, move.destination)


def _has_arrived(move: Move, size: int | None) -> bool:
    """Whether a move that raised has been made: the whole file is in its place, whatever went wrong after that."""
    if size is None or not storage.exists(move.destination) or storage.size(move.destination) != size:
        return False
    return not storage.exists(move.source) or _are_equal(move.source, move.destination)


def _are_equal(one: str, other: str) -> bool:
    with storage.open_file(one) as first, storage.open_file(other) as second:
        while chunk := first.read(_CHUNK_BYTES):
            if second.read(len(chunk)) != chunk:
                return False
        return not second.read(1)


def _discard(paths: Iterable[str]) -> None:
    for path in paths:
        if storage.exists(path):
            storage.delete(path)


def _in_words(error: Exception) -> str:
    return f"the rows are done, but the files could not be moved to their places ({type(error).__name__}: {error})."


def _how_to_finish(moves: Sequence[Move]) -> str:
    left = [move for move in moves if _may_exist(move.source)]
    words = [f"Move {move.source} to {move.destination} ({move.what}, whole)." for move in left]
    words += [f"{move.destination} is new already ({move.what})." for move in moves if move not in left]
    kept = [move for move in moves if _exists(move.earlier) and not (move in left and _exists(move.destination))]
    words += [f"The earlier {move.destination} is kept as {move.earlier}." for move in kept]
    return " ".join(words)


def _exists(path: str) -> bool:
    with suppress(Exception):
        return storage.exists(path)
    return False


def _may_exist(path: str) -> bool:
    try:
        return storage.exists(path)
    except Exception:  # the file system is out of reach; nothing says that the file has moved
        return True
