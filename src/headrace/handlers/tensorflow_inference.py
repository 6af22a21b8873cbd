"""Runs TensorFlow and Keras models on arrays or tensors; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

from headrace.core.conversion import single_output, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import is_uri, open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.base import TakesColumns, as_member

with extra_required("tensorflow"):
    import numpy
# PyTorch's compiler ends the process if it is imported after TensorFlow: both have LLVM. This order works, and where
# TensorFlow is imported already it is too late.
if "tensorflow" not in sys.modules:
    with suppress(ImportError):
        import triton  # noqa: F401 - only for the order
with extra_required("tensorflow"):
    import tensorflow

from headrace.handlers.array_batches import InputRows, predict_arrays

__all__ = [
    "ModelType",
    "TFModelHandlerNumpy",
    "TFModelHandlerTensor",
    "default_numpy_inference_fn",
    "default_tensor_inference_fn",
]

ExampleT = TypeVar("ExampleT")

_FILE = re.compile(r"\.(keras|h5|hdf5)$")
_HUB = re.compile(r"^https?://")
_SIGNATURE = "serving_default"
_GRAPH = "_headrace_graph"

TensorInferenceFn = Callable[[Any, Sequence[Any], "dict[str, Any]", "str | None"], Iterable[PredictionResult]]


class ModelType(Enum):
    """What is in a model's file."""

    SAVED_MODEL = 1
    SAVED_WEIGHTS = 2


def default_numpy_inference_fn(
    model: Any,
    batch: Sequence[numpy.ndarray[Any, Any]],
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
) -> Iterable[PredictionResult]:
    """Calls the model on the stacked arrays or tensors; each example gets its row of the answer, on the CPU.

    Those of different dtypes or shapes run in groups of equal ones. If a SavedModel declares a dtype, numbers are first
    converted to it, as ``headrace.handlers.array_batches.fitted`` does. Of dicts, each array is the input of its name.
    """
    return to_results(batch, _predicted(model, batch, inference_args, _rows_of), model_id)


default_tensor_inference_fn = default_numpy_inference_fn
"""Beam's name for tensors."""


def _predicted(model: Any, batch: Any, inference_args: dict[str, Any] | None, rows: Callable[[Any], Any]) -> Any:
    dtype = model.declared_dtype(inference_args or {}) if isinstance(model, _SavedModel) else None
    ask = partial(_answer_of, model, inference_args=inference_args)
    return predict_arrays(batch, ask, dtype, partial(_inputs_of, model), partial(_each, change=rows))


class _TFModelHandler(InputRows, TakesColumns[ExampleT, Any]):
    mappable = False

    _ignored_arguments: ClassVar[Mapping[str, str]] = {
        "device": "TensorFlow uses a GPU if there is one; env_vars={'CUDA_VISIBLE_DEVICES': '-1'} hides it"
    }
    _inference_fn: TensorInferenceFn

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_type: ModelType = ModelType.SAVED_MODEL,
        create_model_fn: Callable[[], Any] | None = None,
        *,
        load_model_args: dict[str, Any] | None = None,
        custom_weights: str | os.PathLike[str] = "",
        inference_fn: TensorInferenceFn | None = None,
        columns_are_inputs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model_uri, inference_fn, **options)
        self._columns_are_inputs = columns_are_inputs
        self._model_type = as_member(ModelType, model_type, "model_type")
        self._create_model_fn = create_model_fn
        self._load_model_args = load_model_args or {}
        self._custom_weights = os.fspath(custom_weights)
        of_weights = self._model_type is ModelType.SAVED_WEIGHTS
        complaint = ""
        if of_weights is not bool(create_model_fn):
            complaint = "model_type=ModelType.SAVED_WEIGHTS and create_model_fn, which makes their model, go together"
        elif of_weights and (custom_weights or load_model_args):
            complaint = "load_model_args and custom_weights go with ModelType.SAVED_MODEL; model_uri has the weights"
        if complaint:
            raise ConfigurationError(f"{type(self).__qualname__}: {complaint}.")

    def load_model(self) -> Any:
        """Loads the model: Keras's own, or a wrapper that calls a SavedModel like one."""
        if self._create_model_fn is not None:
            model = self._create_model_fn()
            _load_weights(model, self._model_uri)
            return model
        model = _load(self._model_uri, self._load_model_args)
        if self._custom_weights:
            _load_weights(model, self._custom_weights)
        return model

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        return self._inference_fn(model, batch, inference_args or {}, self._model_uri)

    def _answer(self, rows: Any, model: Any, inference_args: dict[str, Any] | None) -> Any:
        if not self.columns_equal_rows():
            return super()._answer(rows, model, inference_args)
        rows = rows if isinstance(rows, Mapping) else numpy.asarray(rows)
        return _predicted(model, rows, inference_args, _array_of)


class TFModelHandlerNumpy(_TFModelHandler["numpy.ndarray[Any, Any]"]):
    """Predicts for numpy arrays: an example has the shape of the model's input without the batch dimension.

    Args:
        model_uri: path or URI of a ``.keras`` or ``.h5`` file or of a SavedModel's folder, or a model's address on
            TensorFlow Hub; with ``ModelType.SAVED_WEIGHTS``, path or URI of the weights.
        model_type: whether the file contains a model or weights.
        create_model_fn: makes the model for saved weights.
        load_model_args: keyword arguments for ``tensorflow.keras.models.load_model``, or for
            ``tensorflow.saved_model.load`` if it is a SavedModel and Keras 3 is installed.
        custom_weights: path or URI of weights to load into a Keras model.
        inference_fn: ``(model, batch, inference_args, model_id)`` returns a PredictionResult for each example.
        columns_are_inputs: for files and tables, whether each column is the input of its name, of any type; if not, all
            columns together are the only input.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_type`` is not a ModelType, or contradicts the other arguments.
    """

    _metrics_namespace = "BeamML_TF_Numpy"
    _default_inference_fn = staticmethod(default_numpy_inference_fn)


class TFModelHandlerTensor(_TFModelHandler[tensorflow.Tensor]):
    """Predicts for tensors: an example has the shape of the model's input without the batch dimension.

    Args and errors are those of ``TFModelHandlerNumpy``.
    """

    _metrics_namespace = "BeamML_TF_Tensor"
    _default_inference_fn = staticmethod(default_tensor_inference_fn)
    _of_array = staticmethod(tensorflow.convert_to_tensor)


class _SavedModel:
    """Calls a SavedModel like the model that was saved; attributes are those of the object that TensorFlow loads."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self._signature = getattr(loaded, "signatures", {}).get(_SIGNATURE)

    @property
    def inputs(self) -> dict[str, Any]:
        """The specifications of the inputs of its signature, by name."""
        return {} if self._signature is None else self._signature.structured_input_signature[1]

    def declared_dtype(self, arguments: Mapping[str, Any]) -> Any:
        """The dtype, as numpy's, of what it is called with besides the arguments; None: none, or several."""
        if callable(self._loaded):
            functions = getattr(type(self._loaded).__call__, "concrete_functions", ())
            specs = [spec for function in functions for spec in function.structured_input_signature[0][:1]]
        else:
            specs = [spec for name, spec in self.inputs.items() if name not in arguments]
        dtypes = {getattr(getattr(spec, "dtype", None), "as_numpy_dtype", None) for spec in specs}
        return dtypes.pop() if len(dtypes) == 1 else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loaded"], name)

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Calls the model; inputs by name go to its signature."""
        if isinstance(inputs, Mapping) and self._signature is not None:
            outputs = self._signature(**inputs, **arguments)
            return next(iter(outputs.values())) if len(outputs) == 1 else outputs
        if callable(self._loaded):
            return self._loaded(inputs, **arguments)
        free = [name for name in self.inputs if name not in arguments]
        if len(free) != 1:
            raise ValueError(
                f"the SavedModel cannot be called, and its signature {_SIGNATURE!r} has the inputs "
                f"{sorted(self.inputs)}; give all but the batch as inference_args, or give the handler an inference_fn "
                "that calls model.signatures itself."
            )
        return self({free[0]: tensorflow.convert_to_tensor(inputs)}, **arguments)


def _inputs_of(model: Any) -> dict[str, tuple[Any, int]]:
    """The dtype, as numpy's, and the number of axes of each input of a model, by its name."""
    found = model.inputs if isinstance(model, _SavedModel) else {one.name: one for one in getattr(model, "inputs", ())}
    return {name: (tensorflow.as_dtype(one.dtype).as_numpy_dtype, len(one.shape)) for name, one in found.items()}


def _load(uri: str, arguments: dict[str, Any]) -> Any:
    if _FILE.search(uri) or os.path.isfile(uri):
        with _local(uri) as path:
            return tensorflow.keras.models.load_model(path, **arguments)
    path = _without_scheme(uri)
    if _HUB.match(uri):
        with extra_required("tensorflow-hub"):
            import tensorflow_hub  # noqa: PLC0415 - few models come from there
        path = str(tensorflow_hub.resolve(uri))
    if tensorflow.keras.__version__.startswith("2."):
        return tensorflow.keras.models.load_model(path, **arguments)
    return _SavedModel(tensorflow.saved_model.load(path, **arguments))


def _load_weights(model: Any, uri: str) -> None:
    if os.path.exists(f"{_without_scheme(uri)}.index"):  # a checkpoint is several files with a common prefix
        model.load_weights(_without_scheme(uri))
        return
    with _local(uri) as path:
        model.load_weights(path)


@contextmanager
def _local(uri: str) -> Iterator[str]:
    """A context with a local path of a file, which keeps its suffix: Keras chooses the format by that."""
    path = _without_scheme(uri)
    if not is_uri(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(urlsplit(uri).path))
        with open_uri(uri) as remote, open(path, "wb") as file:
            shutil.copyfileobj(remote, file)
        yield path


def _without_scheme(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def _answer_of(model: Any, rows: Any, inference_args: dict[str, Any] | None) -> Any:
    """The model's answer for a batch, or for a dict of batches by the names of its inputs; no tuple."""
    rows = {name: tensorflow.constant(one) for name, one in rows.items()} if isinstance(rows, Mapping) else rows
    return _each(_run(model, rows, inference_args or {}), _single)


def _each(answer: Any, change: Callable[[Any], Any]) -> Any:
    """An answer, or each of several by name, changed."""
    return {name: _each(one, change) for name, one in answer.items()} if isinstance(answer, Mapping) else change(answer)


def _single(answer: Any) -> Any:
    return single_output(tuple(answer) if isinstance(answer, list) else answer)  # Keras's several are a list


def _run(model: Any, rows: Any, arguments: Mapping[str, Any]) -> Any:
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


def _array_of(answer: Any) -> Any:
    return answer.numpy() if hasattr(answer, "numpy") else answer


def _rows_of(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: a slice may keep the whole batch alive."""
    if not isinstance(answer, tensorflow.Tensor) or not answer.ndim or not answer.dtype.is_numpy_compatible:
        return answer
    if answer.dtype == tensorflow.string:
        return tensorflow.unstack(answer)
    with tensorflow.device("CPU"):
        return [tensorflow.constant(row.copy()) for row in answer.numpy()]
