"""Loads TensorFlow and Keras models, and calls them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.core.conversion import single_output
from headrace.core.errors import MissingExtraError, extra_required
from headrace.core.files import open_uri

with extra_required("tensorflow"):
    import tensorflow

_FILE = re.compile(r"\.(keras|h5|hdf5)$")
_HUB = re.compile(r"^https?://")
_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_SIGNATURE = "serving_default"
_GRAPH = "_headrace_graph"


class SavedModel:
    """Calls a SavedModel like the model that was saved; attributes are those of the object that TensorFlow loads."""

    def __init__(self, loaded: Any, uri: str) -> None:
        self._loaded = loaded
        signatures = getattr(loaded, "signatures", {})
        if not callable(loaded) and _SIGNATURE not in signatures:
            raise ValueError(
                f"the SavedModel {uri} cannot be called, and it has no signature {_SIGNATURE!r}, only "
                f"{sorted(signatures)}; save it with one, or give the handler a subclass whose load_model picks one."
            )
        self._signature = None if callable(loaded) else signatures[_SIGNATURE]
        self._named = signatures.get(_SIGNATURE)

    @property
    def inputs(self) -> dict[str, Any]:
        """The specifications of the inputs of its signature, by name."""
        return {} if self._named is None else self._named.structured_input_signature[1]

    def specs(self, arguments: Mapping[str, Any]) -> list[Any]:
        """The specifications of what it is called with, besides the arguments."""
        if self._signature is not None:
            return [spec for name, spec in self.inputs.items() if name not in arguments]
        functions = getattr(type(self._loaded).__call__, "concrete_functions", ())
        return [spec for function in functions for spec in function.structured_input_signature[0][:1]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loaded"], name)

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Calls the model; inputs by name go to its signature."""
        if isinstance(inputs, Mapping) and self._named is not None:
            outputs = self._named(**inputs, **arguments)
            return next(iter(outputs.values())) if len(outputs) == 1 else outputs
        if self._signature is None:
            return self._loaded(inputs, **arguments)
        free = [name for name in self.inputs if name not in arguments]
        if len(free) != 1:
            raise ValueError(
                f"the SavedModel's signature {_SIGNATURE!r} has the inputs {sorted(self.inputs)}; give all but the "
                "batch as inference_args, or give the handler an inference_fn that calls model.signatures itself."
            )
        return self({free[0]: tensorflow.convert_to_tensor(inputs)}, **arguments)


def input_dtype(model: Any, arguments: Mapping[str, Any]) -> Any:
    """The dtype, as numpy's, that a SavedModel declares for what it is called with; None: none, or several."""
    specs = model.specs(arguments) if isinstance(model, SavedModel) else []
    dtypes = {getattr(getattr(spec, "dtype", None), "as_numpy_dtype", None) for spec in specs}
    return dtypes.pop() if len(dtypes) == 1 else None


def inputs_of(model: Any) -> dict[str, tuple[Any, int]]:
    """The dtype, as numpy's, and the number of axes of each input of a model, by its name."""
    found = model.inputs if isinstance(model, SavedModel) else {one.name: one for one in getattr(model, "inputs", ())}
    return {name: (tensorflow.as_dtype(one.dtype).as_numpy_dtype, len(one.shape)) for name, one in found.items()}


def load(uri: str, arguments: dict[str, Any]) -> Any:
    """Loads a file of Keras's, or a SavedModel from a folder or TensorFlow Hub."""
    if _FILE.search(uri) or os.path.isfile(uri):
        with _local(uri) as path:
            return tensorflow.keras.models.load_model(path, **arguments)
    path = _hub_path(uri) if _HUB.match(uri) else _without_scheme(uri)
    if not tensorflow.io.gfile.exists(path):
        raise FileNotFoundError(f"there is no model {uri!r}: no such file or folder.")
    if tensorflow.keras.__version__.startswith("2."):
        return tensorflow.keras.models.load_model(path, **arguments)
    return SavedModel(tensorflow.saved_model.load(path, **arguments), uri)


def load_weights(model: Any, uri: str) -> None:
    """Loads weights into a Keras model."""
    if not hasattr(model, "load_weights"):
        raise ValueError(
            f"weights ({uri}) can only be given to a Keras model, not to a {type(model).__name__.lstrip('_')}; load "
            "the model from a .keras file, or use ModelType.SAVED_WEIGHTS with create_model_fn."
        )
    if os.path.exists(f"{_without_scheme(uri)}.index"):  # a checkpoint is several files with a common prefix
        model.load_weights(_without_scheme(uri))
        return
    with _local(uri) as path:
        model.load_weights(path)


@contextmanager
def _local(uri: str) -> Iterator[str]:
    """A context with a local path of a file, which keeps its suffix: Keras chooses the format by that."""
    path = _without_scheme(uri)
    if not _REMOTE.match(path):
        open_uri(path).close()
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(urlsplit(uri).path))
        with open_uri(uri) as remote, open(path, "wb") as file:
            shutil.copyfileobj(remote, file)
        yield path


def _without_scheme(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def _hub_path(uri: str) -> str:
    try:
        import tensorflow_hub  # noqa: PLC0415 - few models come from there
    except ImportError as error:
        raise MissingExtraError("tensorflow_hub", "tensorflow-hub") from error
    return str(tensorflow_hub.resolve(uri))


def answer_of(model: Any, rows: Any, inference_args: dict[str, Any] | None) -> Any:
    """The model's answer for a batch, or for a dict of batches by the names of its inputs; no tuple."""
    rows = {name: tensorflow.constant(one) for name, one in rows.items()} if isinstance(rows, Mapping) else rows
    return _single(_called(model, rows, inference_args or {}))


def _called(model: Any, rows: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer of a model; of Keras's as a graph, in half of the time, unless ``run_eagerly`` is set or it fails."""
    if not isinstance(model, tensorflow.keras.Model) or model.run_eagerly:
        return model(rows, **arguments)
    kept = vars(model)  # so that the graph, which holds the model, ends with it
    if _GRAPH not in kept:
        kept[_GRAPH] = tensorflow.function(model, autograph=False, reduce_retracing=True)
    try:
        return kept[_GRAPH](rows, **arguments)
    except Exception:
        answer = model(rows, **arguments)  # or its own error
        kept[_GRAPH] = model
        return answer


def _single(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {name: _single(output) for name, output in answer.items()}
    return single_output(tuple(answer) if isinstance(answer, list) else answer)  # Keras's several are a list


def arrays_of(answer: Any) -> Any:
    """A tensor as an array; of a mapping, each."""
    if isinstance(answer, Mapping):
        return {name: arrays_of(output) for name, output in answer.items()}
    return answer.numpy() if hasattr(answer, "numpy") else answer


def rows_of(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: a slice may keep the whole batch alive."""
    if isinstance(answer, Mapping):
        return {name: rows_of(output) for name, output in answer.items()}
    if not isinstance(answer, tensorflow.Tensor) or not answer.ndim or not answer.dtype.is_numpy_compatible:
        return answer
    if answer.dtype == tensorflow.string:
        return tensorflow.unstack(answer)
    with tensorflow.device("CPU"):
        return [tensorflow.constant(row.copy()) for row in answer.numpy()]
