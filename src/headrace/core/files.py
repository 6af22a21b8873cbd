"""Opens URIs: local paths here, everything with a scheme through a plug-in loaded by name on first use."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

from headrace.core.errors import ConfigurationError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")

Opener = Callable[[str], BinaryIO]


def open_uri(uri: str) -> BinaryIO:
    """Opens a file for reading bytes.

    Args:
        uri: a local path, a ``file://`` URI, or a URI (``gs://...``, ``s3://...``) of any filesystem that a plug-in in
            the entry-point group ``headrace.filesystems`` can open; Headrace's own opens whatever Beam can.

    Raises:
        OSError: the file cannot be opened.
        ConfigurationError: no plug-in for URIs is installed.
    """
    if uri.startswith("file://"):
        uri = unquote(urlsplit(uri).path)
    if _SCHEME.match(uri):
        return _remote_opener()(uri)
    return open(uri, "rb")


@cache
def _remote_opener() -> Opener:
    for plug_in in importlib.metadata.entry_points(group="headrace.filesystems"):
        return cast(Opener, plug_in.load())
    raise ConfigurationError("no plug-in for remote files was found; reinstall headrace: pip install headrace")
