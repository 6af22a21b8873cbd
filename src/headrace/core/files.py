"""Opens URIs: local paths here, everything with a scheme through a plug-in loaded by name on first use."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, cast

from headrace.core.errors import ConfigurationError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")

Opener = Callable[[str], BinaryIO]


def open_uri(uri: str) -> BinaryIO:
    """Opens a file for reading bytes.

    Args:
        uri: a local path, or a URI (``gs://...``, ``s3://...``, ``file://...``) of any filesystem that a plug-in in the
            entry-point group ``headrace.filesystems`` can open; Headrace's own opens whatever Beam can.

    Raises:
        OSError: the file cannot be opened.
        ConfigurationError: no plug-in for URIs is installed.
    """
    if not _SCHEME.match(uri):
        return open(uri, "rb")
    return _remote_opener()(uri)


@cache
def _remote_opener() -> Opener:
    for plug_in in importlib.metadata.entry_points(group="headrace.filesystems"):
        return cast(Opener, plug_in.load())
    raise ConfigurationError("no plug-in for remote files was found; reinstall headrace: pip install headrace")
