"""Publishes finished files: all or none, and no existing file is lost before its replacement is complete.

Local files are synced to disk before they replace anything, their folders afterwards. Remote filesystems differ: some
overwrite an existing file, some refuse, and some copy and then delete, so a move may raise although it succeeded.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.jobs import storage
from headrace.jobs.storage import is_remote


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

    Args:
        moves: of files that belong together, each within one filesystem.

    Raises:
        PublishError: not all files are in place. No file, new or earlier, is lost; the message says where each is.
    """
    begun: list[Move] = []
    moved: list[Move] = []
    try:
        for move in moves:
            if not is_remote(move.source) and not move.removes:
                sync(move.source)
        for move in moves:
            begun.append(move)
            _keep_earlier(move)
            moved.append(move)
            if not move.removes:
                _replace(move)
    except Exception as error:
        for move in reversed(begun):  # others may have an ``earlier`` of another run
            _undo(move, has_moved=move in moved)
        raise PublishError(
            f"the rows are done, but the files could not be moved to their places ({type(error).__name__}: {error}). "
            f"{_how_to_finish(moves)}"
        ) from error
    try:
        for folder in dict.fromkeys(os.path.dirname(move.destination) for move in moves if not is_remote(move.source)):
            sync(folder)
    except OSError as error:
        places = " and ".join(move.destination for move in moves)
        raise PublishError(f"{places} are there, but the disk does not say that they are safe: {error}") from error


def sync(path: str) -> None:
    """Makes the content of a local file durable; of a folder the names of its files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def _keep_earlier(move: Move) -> None:
    """Keeps the existing file at a destination: a local one stays there until it is replaced."""
    if not storage.exists(move.destination):
        return
    if move.removes or is_remote(move.destination):
        storage.rename(move.destination, move.earlier)
        return
    with suppress(FileNotFoundError):
        os.remove(move.earlier)
    try:
        os.link(move.destination, move.earlier)
    except OSError:  # a filesystem without hard links
        shutil.copy2(move.destination, f"{move.earlier}.new")
        os.replace(f"{move.earlier}.new", move.earlier)  # ``_undo`` restores what has this name: whole files only


def _replace(move: Move) -> None:
    size = storage.size(move.source)
    try:
        storage.rename(move.source, move.destination)
    except Exception:
        # It may have been moved all the same. What is at a remote destination now is this file: an earlier one is gone.
        if not is_remote(move.destination) or size is None or storage.size(move.destination) != size:
            raise


def _undo(move: Move, *, has_moved: bool) -> None:
    """Undoes a move as far as possible: the finished file back in its folder, the earlier file back in place."""
    is_local = not is_remote(move.destination)
    with suppress(Exception):
        if has_moved and not move.removes and storage.exists(move.destination):
            if not storage.exists(move.source):
                storage.rename(move.destination, move.source)
            elif not is_local:
                storage.delete(move.destination)  # a copy, perhaps of a part of it
        if storage.exists(move.earlier) and (is_local or not storage.exists(move.destination)):
            storage.rename(move.earlier, move.destination)


def _how_to_finish(moves: Sequence[Move]) -> str:
    words = []
    for move in moves:
        if not move.removes and _may_exist(move.source):
            words.append(f"Move {move.source} to {move.destination} ({move.what}, whole).")
        elif not move.removes:
            words.append(f"{move.destination} is new already ({move.what}).")
        if _may_exist(move.earlier):
            words.append(f"The earlier {move.destination} is kept as {move.earlier}.")
    return " ".join(words)


def _may_exist(path: str) -> bool:
    try:
        return storage.exists(path)
    except Exception:  # the filesystem is out of reach: assume that the file is still there
        return True
