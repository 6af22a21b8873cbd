"""File access by path or URI: local paths directly, all others through a plug-in that is loaded on first use.

The plug-in is an entry point in the group ``headrace.storage``: an object with methods ``match``, ``open_file``,
``create``, ``exists``, ``rename``, ``delete``, ``make_folder``, ``split`` and ``join``, each with the contract of the
function of that name here; they raise OSError if they fail. Headrace's own supports all of Beam's filesystems.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from glob import escape
from typing import Any, BinaryIO, ParamSpec, TypeVar

from headrace.core.errors import ConfigurationError
from headrace.core.files import FileInfo, file_info, match_local
from headrace.core.phases import Phase, during

P = ParamSpec("P")
T = TypeVar("T")


def is_remote(path: str) -> bool:
    """Whether it is a URI: a path with a scheme."""
    return "://" in path


def _or_plugin(name: str, local: Callable[P, T]) -> Callable[P, T]:
    """Does what the plug-in's method of this name does if the first argument is a URI."""

    def either(*args: P.args, **kwargs: P.kwargs) -> T:
        function: Callable[P, T] = getattr(_plugin(), name) if is_remote(str(args[0])) else local
        return function(*args, **kwargs)

    return either


def match(pattern: str) -> list[FileInfo]:
    """The files that a path or a glob names, sorted by path.

    ``*`` and ``[...]`` stay within a folder, ``**`` does not, and ``**/`` may be no folder at all. The plug-in gives
    (path, bytes, modification time).

    Raises:
        OSError: the filesystem cannot be read.
    """
    if is_remote(pattern):
        return sorted(FileInfo(*file) for file in _plugin().match(pattern))
    return match_local(pattern)


def _delete(path: str) -> None:
    (shutil.rmtree if os.path.isdir(path) else os.remove)(path)


open_file: Callable[[str], BinaryIO] = _or_plugin("open_file", lambda path: open(path, "rb"))  # noqa: SIM115 - the caller closes it
"""Opens a file for reading its raw bytes."""
create: Callable[[str], BinaryIO] = _or_plugin("create", lambda path: open(path, "wb"))  # noqa: SIM115 - as above
"""Opens a file for writing, replacing an existing one; a remote file may appear only when it is closed."""
exists: Callable[[str], bool] = _or_plugin("exists", os.path.exists)
"""Whether there is a file or folder."""
rename: Callable[[str, str], None] = _or_plugin("rename", os.replace)
"""Moves a file; a local one replaces an existing file, while some remote filesystems refuse to."""
delete: Callable[[str], None] = _or_plugin("delete", _delete)
"""Removes a file, or a folder with its content."""
make_folder: Callable[[str], None] = _or_plugin("make_folder", os.makedirs)
"""Creates a folder and its parents."""
split: Callable[[str], tuple[str, str]] = _or_plugin("split", os.path.split)
"""A path's folder and name."""
join: Callable[[str, str], str] = _or_plugin("join", os.path.join)
"""The path of a file in a folder."""


def delete_folder(path: str) -> None:
    """Removes a folder and its files if it exists; on remote filesystems, folders may be mere prefixes of names."""
    if is_remote(path):
        for file in match(join(escape(path), "*")):
            delete(file.path)
    if exists(path):
        delete(path)


def find(path: str) -> FileInfo:
    """A file as it is now; raises OSError if there is none."""
    found = match(escape(path)) if is_remote(path) else [file_info(path)]
    if not found:
        raise FileNotFoundError(path)
    return found[0]


def size(path: str) -> int | None:
    """The size of a file in bytes; None if unknown."""
    try:
        return find(path).size
    except OSError:
        return None


def prefetch(items: Iterator[T]) -> Generator[T, None, None]:
    """Yields the same items; a thread computes the next one meanwhile. Closing the generator ends the thread.

    Raises:
        Exception: whatever ``items`` raises, once the items before it were yielded.
    """
    with ThreadPoolExecutor(1, "headrace-reads-ahead") as thread:
        coming = thread.submit(next, items, None)
        while (item := _awaited(coming)) is not None:
            coming = thread.submit(next, items, None)
            yield item


@during(Phase.BATCH)
def _awaited(coming: Future[T]) -> T:
    return coming.result()


@cache
def _plugin() -> Any:
    for plug_in in importlib.metadata.entry_points(group="headrace.storage"):
        return plug_in.load()
    raise ConfigurationError("no plug-in for remote files was found; reinstall headrace: pip install headrace")
