"""Local paths for a model's files, which TensorFlow does not open through Headrace's plug-ins; what the files say."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.core.files import open_uri
from headrace.core.model_files import KnownModel, ModelFile
from headrace.handlers.protocol_buffers import integers, messages, texts

__all__ = ["hub_path", "local", "recognise", "without_scheme"]

_SAVED = "saved_model.pb"
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


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of arrays, for a SavedModel's folder or a file of Keras.

    Raises:
        ConfigurationError: the model has several inputs.
    """
    if _SAVED in model.members and model.is_folder:
        shapes = _shapes_of_signature(memoryview(model.read(_SAVED)))
        what = "a SavedModel of TensorFlow"
    elif model.suffix in (".keras", ".h5", ".hdf5"):
        layers = model.settings("config.json").get("config", {}).get("layers", ())
        shapes = [layer["config"]["batch_shape"] for layer in layers if layer["class_name"] == "InputLayer"]
        what = "a model of Keras"
    else:
        return None
    if len(shapes) > 1:
        raise ConfigurationError(
            f"it is {what} with {len(shapes)} inputs, which needs a handler of your own: --handler "
            "package.module:factory, with an inference_fn that calls it."
        )
    width = shapes[0][1] if shapes and len(shapes[0]) == 2 else None
    return KnownModel("tensorflow-numpy", what, width=width)


def _shapes_of_signature(content: memoryview) -> list[list[int | None]]:
    """The shapes of the inputs of a SavedModel's serving signature; the fields are those of saved_model.proto."""
    for signature in messages(content, 2, 5):
        if texts(signature, 1) == ["serving_default"]:
            inputs = messages(signature, 2, 1, 2, 3)
            return [[_size(integers(dimension, 1)) for dimension in messages(shape, 2)] for shape in inputs]
    return []


def _size(sizes: list[int]) -> int | None:
    """The size of a dimension; None if it is open, which is -1 there."""
    return sizes[0] if sizes and 0 < sizes[0] < 1 << 63 else None
