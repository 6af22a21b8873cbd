"""Publishes finished files: all or none, and no existing file is deleted before its replacement is complete.

Local files are synced to disk before they replace anything, their folders afterwards. Remote filesystems differ: some
overwrite an existing file, some refuse, and some copy and then delete, so a move may raise although it succeeded.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from headrace.core.errors import UnsupportedError
from headrace.jobs import storage
from headrace.jobs.storage import is_remote

try:
    import fcntl
except ImportError as error:  # Windows
    raise UnsupportedError(
        "running over files on this system",
        "it needs the file locks of Unix: use Linux, macOS or WSL, or headrace.predict over rows that you read",
    ) from error

_CHUNK_BYTES = 1 << 20


class PublishError(OSError):
    """The run finished, but its files are not in place; the message says where they are and how to finish."""


class Move(NamedTuple):
    """A finished file and its destination; or a file that is to be gone."""

    what: str
    """For messages, such as "the predictions"."""
    source: str
    destination: str
    removes: bool = False
    """Whether nothing replaces the file at the destination, which ``earlier`` keeps; there is no ``source`` then."""

    @property
    def earlier(self) -> str:
        """Where a replaced file waits, beside the finished one, in case it has to be restored."""
        return f"{self.source}.earlier"


def put_in_place(moves: Sequence[Move]) -> None:
    """Moves files to their destinations in order; if one fails, the moves before it are undone.

    If the destination of the last finished file is local, a lock there makes other processes wait until all are moved.

    Args:
        moves: of files that belong together, each within one filesystem.

    Raises:
        PublishError: not all files are in place. No file, new or earlier, is lost; the message says where each is.
    """
    with _destination_lock([move for move in moves if not move.removes][-1].destination):
        _put_in_place(moves)


def _put_in_place(moves: Sequence[Move]) -> None:
    begun: list[Move] = []
    moved: list[Move] = []
    try:
        for move in moves:
            if not is_remote(move.source) and not move.removes:
                _sync_file(move.source)
        for move in moves:
            begun.append(move)
            if move.removes:
                storage.rename(move.destination, move.earlier)
                continue
            # The last move needs no copy of the earlier file: nothing after it can fail and undo it.
            if move is not moves[-1]:
                _keep_earlier(move)
            moved.append(move)
            _replace(move)
    except Exception as error:
        for move in reversed(begun):
            _undo(move, has_moved=move in moved)
        raise PublishError(f"{_in_words(error)} {_how_to_finish(moves)}") from error
    try:
        for folder in dict.fromkeys(os.path.dirname(move.destination) for move in moves if not is_remote(move.source)):
            sync_folder(folder)
    except OSError as error:
        places = " and ".join(move.destination for move in moves)
        raise PublishError(f"{places} are there, but the disk does not say that they are safe: {error}") from error


@contextmanager
def _destination_lock(path: str) -> Iterator[None]:
    """Holds a lock for a local path, if its filesystem supports locks; the last holder removes the lock file."""
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
        except OSError:  # if the folder is not writable, the moves will fail
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder may have removed the file between open and flock: then lock its successor.
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except FileNotFoundError:  # the previous holder has removed it
            pass
        except OSError:  # a filesystem without locks
            return descriptor
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Makes file creations and renames in a local folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _keep_earlier(move: Move) -> None:
    """Keeps the existing file at a destination under another name, in case a later move fails."""
    if not storage.exists(move.destination):
        return
    if not is_remote(move.destination):
        _discard([move.earlier])
        try:
            os.link(move.destination, move.earlier)
        except OSError:  # a filesystem without hard links
            shutil.copy2(move.destination, move.earlier)
        return
    try:
        storage.copy(move.destination, move.earlier)
    except Exception:  # it cannot copy, but a rename keeps the file, too
        _discard([move.earlier])
        storage.rename(move.destination, move.earlier)


def _replace(move: Move) -> None:
    """Moves one file; an existing file remains, in place or as ``earlier``, unless the new one has arrived."""
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
        storage.delete(move.destination)  # ``earlier`` is a copy of it
    else:
        storage.rename(move.destination, move.earlier)
    try:
        storage.rename(move.source, move.destination)
    except Exception:
        if not _has_arrived(move, size):
            raise


def _undo(move: Move, *, has_moved: bool) -> None:
    """Undoes a move as far as possible: the finished file back in its folder, the earlier file back in place."""
    with suppress(Exception):
        if not move.removes and not storage.exists(move.source):
            storage.rename(move.destination, move.source)
        elif has_moved and storage.exists(move.destination) and _are_equal(move.source, move.destination):
            storage.delete(move.destination)
        if storage.exists(move.earlier) and not storage.exists(move.destination):
            storage.rename(move.earlier, move.destination)


def _has_arrived(move: Move, size: int | None) -> bool:
    """Whether a move that raised has succeeded anyway: the complete file is at its destination."""
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
    kept = [move for move in moves if _exists(move.earlier) and not (move.removes and _exists(move.destination))]
    moves = [move for move in moves if not move.removes]
    left = [move for move in moves if _may_exist(move.source)]
    words = [f"Move {move.source} to {move.destination} ({move.what}, whole)." for move in left]
    words += [f"{move.destination} is new already ({move.what})." for move in moves if move not in left]
    kept = [move for move in kept if not (move in left and _exists(move.destination))]
    words += [f"The earlier {move.destination} is kept as {move.earlier}." for move in kept]
    return " ".join(words)


def _exists(path: str) -> bool:
    with suppress(Exception):
        return storage.exists(path)
    return False


def _may_exist(path: str) -> bool:
    try:
        return storage.exists(path)
    except Exception:  # the filesystem is out of reach: assume that the file is still there
        return True
