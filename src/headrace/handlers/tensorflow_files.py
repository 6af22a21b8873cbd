"""Where TensorFlow finds a model's files: it opens paths, and nothing but."""

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
    """A path of a file; by the end of its name Keras tells what it is.

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
    """A path, if it is one of this machine."""
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def hub_path(uri: str) -> str:
    """Where TensorFlow Hub's package has put a model that it has downloaded."""
    try:
        import tensorflow_hub  # noqa: PLC0415 - few models come from there
    except ImportError as error:
        raise MissingExtraError("tensorflow_hub", "tensorflow-hub") from error
    return str(tensorflow_hub.resolve(uri))
