"""Local paths for a model's files: TensorFlow does not open remote ones through Headrace's plug-ins."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from headrace.core.errors import MissingExtraError
from headrace.core.files import open_uri

__all__ = ["hub_path", "local", "without_scheme"]

_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


@contextmanager
def local(uri: str) -> Iterator[str]:
    """A context with a local path of a file, which keeps its suffix: Keras chooses the format by that.

    Raises:
        OSError: there is no such file.
    """
    path = without_scheme(uri)
    if not _REMOTE.match(path):
        open_uri(path).close()
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(urlsplit(uri).path))
        with open_uri(uri) as remote, open(path, "wb") as file:
            shutil.copyfileobj(remote, file)
        yield path


def without_scheme(uri: str) -> str:
    """The path in a ``file://`` URI; anything else is unchanged."""
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def hub_path(uri: str) -> str:
    """The folder into which TensorFlow Hub's package downloads a model.

    Raises:
        MissingExtraError: that package is not installed.
    """
    try:
        import tensorflow_hub  # noqa: PLC0415 - few models come from there
    except ImportError as error:
        raise MissingExtraError("tensorflow_hub", "tensorflow-hub") from error
    return str(tensorflow_hub.resolve(uri))
