"""Local paths for a model's files, which TensorFlow does not open through Headrace's plug-ins; what the files say."""

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
    """The handler of arrays, for a SavedModel's folder or a file of Keras; several inputs are columns by name."""
    if _SAVED in model.members and model.is_folder:
        shapes = _shapes_of_signature(memoryview(model.read(_SAVED)))
        what = "a SavedModel of TensorFlow"
    elif model.suffix in (".keras", ".h5", ".hdf5"):
        layers = model.settings("config.json").get("config", {}).get("layers", ())
        inputs = [layer["config"] for layer in layers if layer["class_name"] == "InputLayer"]
        shapes = {one.get("name", ""): one["batch_shape"] for one in inputs}
        what = "a model of Keras"
    else:
        return None
    if len(shapes) > 1:
        named = {"columns_are_inputs": True}
        return KnownModel("tensorflow-numpy", f"{what} with {len(shapes)} inputs", named, columns=tuple(shapes))
    width = next((shape[1] for shape in shapes.values() if len(shape) == 2), None)
    return KnownModel("tensorflow-numpy", what, width=width)


def _shapes_of_signature(content: memoryview) -> dict[str, list[int | None]]:
    """The shapes of the inputs of a SavedModel's serving signature; the fields are those of saved_model.proto."""
    for signature in messages(content, 2, 5):
        if texts(signature, 1) == ["serving_default"]:
            return {texts(one, 1)[0]: _shape(one) for one in messages(signature, 2, 1)}
    return {}


def _shape(value: memoryview) -> list[int | None]:
    return [_size(integers(dimension, 1)) for dimension in messages(value, 2, 3, 2)]


def _size(sizes: list[int]) -> int | None:
    """The size of a dimension; None if it is open, which is -1 there."""
    return sizes[0] if sizes and 0 < sizes[0] < 1 << 63 else None
