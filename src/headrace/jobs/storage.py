"""File access by path or URI: local paths directly, all others through a plug-in that is loaded on first use.

The plug-in is an entry point in the group ``headrace.storage``: an object with the methods of ``Storage``. Headrace's
own plug-in supports all of Beam's filesystems.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterable
from functools import cache
from typing import BinaryIO, Protocol

from headrace.core.errors import ConfigurationError
from headrace.core.files import FileInfo, file_info, match_local


class Storage(Protocol):
    """What the plug-in does for URIs; methods raise OSError if they fail.

    Each method has the contract of the function of the same name in this module.
    """

    def match(self, pattern: str) -> Iterable[tuple[str, int, float]]:
        """(path, bytes, modification time) of the files that match."""
        ...

    def open_file(self, path: str) -> BinaryIO: ...  # noqa: D102 - as above

    def create(self, path: str) -> BinaryIO: ...  # noqa: D102 - as above

    def exists(self, path: str) -> bool: ...  # noqa: D102 - as above

    def rename(self, source: str, destination: str) -> None: ...  # noqa: D102 - as above

    def delete(self, path: str) -> None: ...  # noqa: D102 - as above

    def make_folder(self, path: str) -> None: ...  # noqa: D102 - as above

    def split(self, path: str) -> tuple[str, str]: ...  # noqa: D102 - as above

    def join(self, folder: str, name: str) -> str: ...  # noqa: D102 - as above


def is_remote(path: str) -> bool:
    """Whether it is a URI: a path with a scheme."""
    return "://" in path


def match(pattern: str) -> list[FileInfo]:
    """The files that a path or a glob names, sorted by path.

    ``*`` and ``[...]`` stay within a folder, ``**`` does not, and ``**/`` may be no folder at all.

    Raises:
        OSError: the filesystem cannot be read.
    """
    if is_remote(pattern):
        return sorted(FileInfo(*file) for file in _remote().match(pattern))
    return match_local(pattern)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading its raw bytes."""
    return _remote().open_file(path) if is_remote(path) else open(path, "rb")


def create(path: str) -> BinaryIO:
    """Opens a file for writing, replacing an existing one; a remote file may appear only when it is closed."""
    return _remote().create(path) if is_remote(path) else open(path, "wb")


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    return _remote().exists(path) if is_remote(path) else os.path.exists(path)


def delete_folder(path: str) -> None:
    """Removes a folder and its files if it exists; on remote filesystems, folders may be mere prefixes of names."""
    if is_remote(path):
        for file in match(join(path, "*")):
            delete(file.path)
    if exists(path):
        delete(path)


def size(path: str) -> int | None:
    """The size of a file in bytes; None if unknown."""
    try:
        found = match(path) if is_remote(path) else [file_info(path)]
    except OSError:
        return None
    return found[0].size if found else None


def rename(source: str, destination: str) -> None:
    """Moves a file; a local one replaces an existing file, while some remote filesystems refuse to."""
    if is_remote(source):
        _remote().rename(source, destination)
    else:
        os.replace(source, destination)


def delete(path: str) -> None:
    """Removes a file, or a folder with its content."""
    if is_remote(path):
        _remote().delete(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def make_folder(path: str) -> None:
    """Creates a folder and its parents."""
    if is_remote(path):
        _remote().make_folder(path)
    else:
        os.makedirs(path)


def split(path: str) -> tuple[str, str]:
    """A path's folder and name."""
    return _remote().split(path) if is_remote(path) else os.path.split(path)


def join(folder: str, name: str) -> str:
    """The path of a file in a folder."""
    return _remote().join(folder, name) if is_remote(folder) else os.path.join(folder, name)


@cache
def _remote() -> Storage:
    for plug_in in importlib.metadata.entry_points(group="headrace.storage"):
        storage: Storage = plug_in.load()
        return storage
    raise ConfigurationError("no plug-in for remote files was found; reinstall headrace: pip install headrace")
