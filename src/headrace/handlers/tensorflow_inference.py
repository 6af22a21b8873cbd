"""Runs TensorFlow and Keras models on arrays or tensors; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, ClassVar, TypeVar

from headrace.core.conversion import (
    FLOAT32_MAX,
    answer_with_rows,
    predict_by_kind,
    single_output,
    to_matrix,
    to_numbers,
    to_results,
)
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.base import UriModelHandler, as_member
from headrace.handlers.cards import CARDS
from headrace.handlers.tensorflow_files import hub_path, local, without_scheme

with extra_required("tensorflow"):
    import numpy
# PyTorch's compiler ends the process if it is imported after TensorFlow: both have LLVM. This order works, and where
# TensorFlow is imported already it is too late.
if "tensorflow" not in sys.modules:
    with suppress(ImportError):
        import triton  # noqa: F401 - only for the order
with extra_required("tensorflow"):
    import tensorflow

from headrace.handlers.array_batches import Float32Rows, stacked_alike

__all__ = [
    "ModelType",
    "TFModelHandlerNumpy",
    "TFModelHandlerTensor",
    "default_numpy_inference_fn",
    "default_tensor_inference_fn",
]

_FILE = re.compile(r"\.(keras|h5|hdf5)$")
_HUB = re.compile(r"^https?://")
_SIGNATURE = "serving_default"
_GRAPH = "_headrace_graph"

ExampleT = TypeVar("ExampleT")

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
    """Calls the model on the stacked arrays; each example gets its row of the answer, on the CPU.

    Arrays of different dtypes or shapes run in groups of equal ones. If a SavedModel declares a dtype, numbers are
    first converted to it, as ``headrace.handlers.array_batches.fitted`` does.
    """
    dtype = model.input_dtype(inference_args or {}) if isinstance(model, _SavedModel) else None
    predict = partial(_answer, model, inference_args=inference_args)
    return to_results(batch, stacked_alike(batch, predict, dtype, _rows), model_id)


def default_tensor_inference_fn(
    model: Any,
    batch: Sequence[tensorflow.Tensor],
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
) -> Iterable[PredictionResult]:
    """Calls the model on the stacked tensors; each example gets its row of the answer, on the CPU.

    Tensors of different dtypes or shapes run in groups of equal ones.
    """
    tensors = [one if tensorflow.is_tensor(one) else tensorflow.convert_to_tensor(one) for one in batch]

    def ask(alike: Sequence[Any]) -> Any:
        return _answer(model, tensorflow.stack(alike), inference_args)

    predictions = predict_by_kind(tensors, _kind, lambda alike: _rows(answer_with_rows(ask, alike)))
    return to_results(batch, predictions, model_id)


class _TFModelHandler(UriModelHandler[ExampleT, Any]):
    """Loads the model; subclasses know their examples."""

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
        **options: Any,
    ) -> None:
        super().__init__(model_uri, inference_fn, **options)
        self._model_type = as_member(ModelType, model_type, "model_type")
        self._create_model_fn = create_model_fn
        self._load_model_args = load_model_args or {}
        self._custom_weights = os.fspath(custom_weights)
        self._check_arguments()

    def load_model(self) -> Any:
        """Loads the model: Keras's own, or a wrapper that calls a SavedModel like one.

        Raises:
            ValueError: the file contains no model, or no weights.
            OSError: it cannot be opened.
            MissingExtraError: the model is on TensorFlow Hub, and its package is not installed.
        """
        if self._create_model_fn is not None:
            model = self._create_model_fn()
            _load_weights(model, self._model_uri)
            return model
        model = _load(self._model_uri, self._load_model_args)
        if self._custom_weights:
            _load_weights(model, self._custom_weights)
        return model

    def run_inference(
        self, batch: Sequence[ExampleT], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts; examples of equal dtype and shape share a call."""
        return self._inference_fn(model, batch, inference_args or {}, self._model_uri)

    def run_columns(self, columns: Any, model: Any, inference_args: dict[str, Any] | None = None) -> PredictionResult:
        """Predicts for all rows of an array, or of columns that make a matrix of 32-bit floats.

        An ``inference_fn`` of the user's gets the array, or the tensor, as its batch.
        """
        rows = self._as_batch(to_matrix(columns, numpy, "float32"))
        if self.columns_equal_rows():
            return PredictionResult(columns, _arrays(_answer(model, rows, inference_args)), self._model_uri)
        results = self._inference_fn(model, rows, inference_args or {}, self._model_uri)
        return PredictionResult(columns, [result.inference for result in results], self._model_uri)

    def _as_batch(self, rows: numpy.ndarray[Any, Any]) -> Any:
        """A matrix as the model's handler passes batches."""
        return rows

    def _check_arguments(self) -> None:
        """Also refuses arguments that would be ignored."""
        of_weights = self._model_type is ModelType.SAVED_WEIGHTS
        checks = [
            (
                self._create_model_fn or not of_weights,
                "ModelType.SAVED_WEIGHTS needs create_model_fn, which makes the model that the weights are for",
            ),
            (
                of_weights or not self._create_model_fn,
                "create_model_fn goes with model_type=ModelType.SAVED_WEIGHTS; a saved model needs none",
            ),
            (
                not (of_weights and (self._custom_weights or self._load_model_args)),
                "load_model_args and custom_weights go with ModelType.SAVED_MODEL; model_uri has the weights",
            ),
        ]
        for good, complaint in checks:
            if not good:
                raise ConfigurationError(f"{type(self).__qualname__}: {complaint}.")


class TFModelHandlerNumpy(Float32Rows, _TFModelHandler["numpy.ndarray[Any, Any]"]):
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
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_type`` is not a ModelType, or contradicts the other arguments.
    """

    card = CARDS["tensorflow_inference.TFModelHandlerNumpy"]

    _metrics_namespace = "BeamML_TF_Numpy"
    _default_inference_fn = staticmethod(default_numpy_inference_fn)


class TFModelHandlerTensor(_TFModelHandler[tensorflow.Tensor]):
    """Predicts for tensors: an example has the shape of the model's input without the batch dimension.

    Args and errors are those of ``TFModelHandlerNumpy``.
    """

    card = CARDS["tensorflow_inference.TFModelHandlerTensor"]

    _metrics_namespace = "BeamML_TF_Tensor"
    _default_inference_fn = staticmethod(default_tensor_inference_fn)

    def get_num_bytes(self, batch: Sequence[tensorflow.Tensor]) -> int:
        """Bytes of the tensors' elements; strings count as references."""
        return sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in batch)

    def example_from_row(self, row: Mapping[str, Any]) -> tensorflow.Tensor:
        """A row's columns, in their order, as a 1-D tensor of 32-bit floats.

        Raises:
            ValueError: a value is not a finite 32-bit number; names the column and the value.
        """
        return tensorflow.constant(to_numbers(row, FLOAT32_MAX), dtype=tensorflow.float32)

    def _as_batch(self, rows: numpy.ndarray[Any, Any]) -> Any:
        return tensorflow.convert_to_tensor(rows)


class _SavedModel:
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

    def input_dtype(self, arguments: Mapping[str, Any]) -> Any:
        """The dtype, as numpy's, of the inputs besides the arguments; None if they have several."""
        if self._signature is not None:
            named = self._signature.structured_input_signature[1]
            specs = [spec for name, spec in named.items() if name not in arguments]
        else:
            functions = getattr(type(self._loaded).__call__, "concrete_functions", ())
            specs = [spec for function in functions for spec in function.structured_input_signature[0][:1]]
        dtypes = {getattr(getattr(spec, "dtype", None), "as_numpy_dtype", None) for spec in specs}
        return dtypes.pop() if len(dtypes) == 1 else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loaded"], name)

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        if self._signature is None:
            return self._loaded(inputs, **arguments)
        named = self._signature.structured_input_signature[1]
        free = [name for name in named if name not in arguments]
        if len(free) != 1:
            raise ValueError(
                f"the SavedModel's signature {_SIGNATURE!r} has the inputs {sorted(named)}; give all but the batch as "
                "inference_args, or give the handler an inference_fn that calls model.signatures itself."
            )
        outputs = self._signature(**{free[0]: tensorflow.convert_to_tensor(inputs)}, **arguments)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _load(uri: str, arguments: dict[str, Any]) -> Any:
    if _FILE.search(uri) or os.path.isfile(uri):
        with local(uri) as path:
            return tensorflow.keras.models.load_model(path, **arguments)
    path = hub_path(uri) if _HUB.match(uri) else without_scheme(uri)
    if not tensorflow.io.gfile.exists(path):
        raise FileNotFoundError(f"there is no model {uri!r}: no such file or folder.")
    if tensorflow.keras.__version__.startswith("2."):
        return tensorflow.keras.models.load_model(path, **arguments)
    return _SavedModel(tensorflow.saved_model.load(path, **arguments), uri)


def _load_weights(model: Any, uri: str) -> None:
    if not hasattr(model, "load_weights"):
        raise ValueError(
            f"weights ({uri}) can only be given to a Keras model, not to a {type(model).__name__.lstrip('_')}; load "
            "the model from a .keras file, or use ModelType.SAVED_WEIGHTS with create_model_fn."
        )
    if os.path.exists(f"{without_scheme(uri)}.index"):  # a checkpoint is several files with a common prefix
        model.load_weights(without_scheme(uri))
        return
    with local(uri) as path:
        model.load_weights(path)


def _kind(tensor: Any) -> tuple[Any, ...]:
    return type(tensor), tensor.dtype, tuple(tensor.shape)


def _answer(model: Any, rows: Any, inference_args: dict[str, Any] | None) -> Any:
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


def _arrays(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {name: _arrays(output) for name, output in answer.items()}
    return answer.numpy() if hasattr(answer, "numpy") else answer


def _rows(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: a slice may keep the whole batch alive."""
    if isinstance(answer, Mapping):
        return {name: _rows(output) for name, output in answer.items()}
    if not isinstance(answer, tensorflow.Tensor) or not answer.ndim or not answer.dtype.is_numpy_compatible:
        return answer
    if answer.dtype == tensorflow.string:
        return tensorflow.unstack(answer)
    with tensorflow.device("CPU"):
        return [tensorflow.constant(row.copy()) for row in answer.numpy()]
