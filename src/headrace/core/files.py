"""Finds local files, and opens URIs: local paths directly, all others through a plug-in, loaded on first use."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from headrace.core.errors import ConfigurationError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")

Opener = Callable[[str], BinaryIO]


def open_uri(uri: str) -> BinaryIO:
    """Opens a file for reading bytes.

    Args:
        uri: a local path, a ``file://`` URI, or a URI (``gs://...``, ``s3://...``) that a plug-in in the entry-point
            group ``headrace.filesystems`` can open; Headrace's own plug-in opens whatever Beam can.

    Raises:
        OSError: the file cannot be opened.
        ConfigurationError: no plug-in for URIs is installed.
    """
    uri = _without_scheme(uri)
    if not is_uri(uri):
        return open(uri, "rb")
    return _remote_opener()(uri) if _copies is None else _open_copy(uri, _copies)


def is_at(file: int, path: str) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def is_folder_name(name: str | None) -> bool:
    """Whether something is named as a folder: with a slash at its end."""
    return name is not None and name.endswith(("/", os.sep))


def read_file(uri: str) -> bytes:
    """The content of a file; no copy is kept. Argument and errors are those of ``open_uri``."""
    uri = _without_scheme(uri)
    with _remote_opener()(uri) if is_uri(uri) else open(uri, "rb") as file:
        return file.read()


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """The path of a new file, which takes the other's place at the end of the context, unless that raises."""
    part = os.path.join(os.path.dirname(path), f".part-{os.path.basename(path)}")
    try:
        yield part
        os.replace(part, path)
    finally:
        with suppress(OSError):  # it is in its place, or was never made
            os.remove(part)


class FileInfo(NamedTuple):
    """An existing file."""

    path: str
    size: int
    """In bytes."""
    changed: float
    """Modification time, in seconds since 1970."""


def file_info(path: str) -> FileInfo:
    """A local file as it is now; raises OSError if there is none."""
    status = os.stat(path)
    return FileInfo(path, status.st_size, status.st_mtime)


def match_local(pattern: str) -> list[FileInfo]:
    """The local files that a path or a glob names, sorted by path; raises OSError if one cannot be read."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    if fixed == pattern:
        return [file_info(pattern)] if os.path.exists(pattern) else []
    wanted = as_regex(pattern)
    paths = files_below(os.path.dirname(fixed) or os.curdir)
    return sorted(file_info(path) for path in paths if wanted.fullmatch(path))


def files_below(folder: str) -> Iterator[str]:
    """The paths of the files in a local folder and in those below it."""
    for where, _, names in os.walk(folder):
        yield from (os.path.join(where, name) for name in names)


def as_regex(pattern: str) -> re.Pattern[str]:
    """What matches the same paths as a glob: ``**`` may hold slashes, and ``**/`` may be nothing."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\])", pattern)
    return re.compile("".join(map(_part_as_regex, parts)), re.DOTALL)


def _part_as_regex(part: str) -> str:
    if part in _WILDCARDS:
        return _WILDCARDS[part]
    if part.startswith("[") and part.endswith("]") and len(part) > 2:
        inner = part[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        return f"[^{inner[1:]}]" if inner[0] == "!" else f"[{inner}]" if inner[0] != "^" else f"[\\{inner}]"
    return re.escape(part)


_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": r"[^/\\]*", "?": "."}


def is_uri(path: str) -> bool:
    """Whether a plug-in opens it."""
    return _SCHEME.match(path) is not None


def _without_scheme(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


_copies: dict[str, int] | None = None
"""Descriptors of unnamed local copies of remote files, by URI; None: no copies are made."""
_copying = threading.Lock()


def keep_copies(copies: Mapping[str, int]) -> None:
    """From now on, copies each remote file to an unnamed local file when it is first opened, and reads the copy.

    For processes that load the same model repeatedly; they can pass on the descriptors of ``copies``, by URI.
    """
    global _copies  # noqa: PLW0603 - it concerns the process
    _copies = dict(copies)


def kept_copies() -> dict[str, int]:
    """Descriptors of the existing copies, by URI."""
    return dict(_copies or {})


def _open_copy(uri: str, copies: dict[str, int]) -> BinaryIO:
    with _copying:  # one at a time: two threads may want the same file
        if uri not in copies:
            with tempfile.TemporaryFile() as copy, _remote_opener()(uri) as remote:
                shutil.copyfileobj(remote, copy, 1 << 22)
                copy.flush()
                copies[uri] = os.dup(copy.fileno())
    return open(f"/dev/fd/{copies[uri]}", "rb")


@cache
def _remote_opener() -> Opener:
    for plug_in in importlib.metadata.entry_points(group="headrace.filesystems"):
        return cast(Opener, plug_in.load())
    raise ConfigurationError("no plug-in for remote files was found; reinstall headrace: pip install headrace")
