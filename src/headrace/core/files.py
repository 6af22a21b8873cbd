"""Opens URIs: local paths directly, all others through a plug-in that is loaded on first use."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import BinaryIO, cast
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
    if uri.startswith("file://"):
        uri = unquote(urlsplit(uri).path)
    if not _SCHEME.match(uri):
        return open(uri, "rb")
    return _remote_opener()(uri) if _copies is None else _open_copy(uri, _copies)


_copies: dict[str, int] | None = None
"""Descriptors of unnamed local copies of remote files, by URI; None: no copies are made."""
_copying = threading.Lock()


def keep_copies(copies: Mapping[str, int]) -> None:
    """From now on, copies each remote file to an unnamed local file when it is first opened, and reads the copy.

    For processes that load the same model repeatedly; they can pass the copies on.

    Args:
        copies: descriptors of existing copies, by URI.
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
