"""Runs TensorFlow and Keras models on arrays or tensors; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, ClassVar, TypeVar

from headrace.core.conversion import arrays_in, predict_stacked, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.base import UriModelHandler, as_member

with extra_required("tensorflow"):
    import numpy
# PyTorch's compiler ends the process if it is imported after TensorFlow: both have LLVM. This order works, and where
# TensorFlow is imported already it is too late.
if "tensorflow" not in sys.modules:
    with suppress(ImportError):
        import triton  # noqa: F401 - only for the order
with extra_required("tensorflow"):
    import tensorflow

from headrace.handlers.array_batches import InputRows, are_named, predict_arrays
from headrace.handlers.tensorflow_models import (
    answer_of,
    arrays_of,
    input_dtype,
    inputs_of,
    load,
    load_weights,
    rows_of,
)

__all__ = [
    "ModelType",
    "TFModelHandlerNumpy",
    "TFModelHandlerTensor",
    "default_numpy_inference_fn",
    "default_tensor_inference_fn",
]

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
    first converted to it, as ``headrace.handlers.array_batches.fitted`` does. Of dicts, each array is the input of its
    name.
    """
    return to_results(batch, _predicted(model, batch, inference_args, rows_of), model_id)


def default_tensor_inference_fn(
    model: Any,
    batch: Sequence[tensorflow.Tensor],
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
) -> Iterable[PredictionResult]:
    """Calls the model on the stacked tensors; each example gets its row of the answer, on the CPU.

    Tensors of different dtypes or shapes run in groups of equal ones. Examples may be dicts, as of arrays.
    """
    if are_named(batch):
        return default_numpy_inference_fn(model, batch, inference_args, model_id)
    tensors = [one if tensorflow.is_tensor(one) else tensorflow.convert_to_tensor(one) for one in batch]
    ask = partial(answer_of, model, inference_args=inference_args)
    answers = predict_stacked(tensors, tensorflow.stack, ask, lambda answer, _: rows_of(answer))
    return to_results(batch, answers, model_id)


def _predicted(model: Any, batch: Any, inference_args: dict[str, Any] | None, rows: Callable[[Any], Any]) -> Any:
    ask = partial(answer_of, model, inference_args=inference_args)
    return predict_arrays(batch, ask, input_dtype(model, inference_args or {}), partial(inputs_of, model), rows)


class _TFModelHandler(InputRows, UriModelHandler[ExampleT, Any]):
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
        self._check_arguments()

    def load_model(self) -> Any:
        """Loads the model: Keras's own, or a wrapper that calls a SavedModel like one."""
        if self._create_model_fn is not None:
            model = self._create_model_fn()
            load_weights(model, self._model_uri)
            return model
        model = load(self._model_uri, self._load_model_args)
        if self._custom_weights:
            load_weights(model, self._custom_weights)
        return model

    def run_inference(
        self, batch: Sequence[ExampleT], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts; examples of equal dtype and shape share a call."""
        return self._inference_fn(model, batch, inference_args or {}, self._model_uri)

    def run_columns(self, columns: Any, model: Any, inference_args: dict[str, Any] | None = None) -> PredictionResult:
        """Predicts for all rows of columns, or of an array; an ``inference_fn`` gets what the model would."""
        rows = self._rows_of(columns)
        if not self.columns_equal_rows():
            results = self._inference_fn(model, rows, inference_args or {}, self._model_uri)
            answer: Any = [result.inference for result in results]
        elif tensorflow.is_tensor(rows):
            answer = arrays_of(answer_of(model, rows, inference_args))
        else:
            answer = _predicted(model, rows, inference_args, arrays_of)
        return PredictionResult(columns, answer, self._model_uri)

    def _check_arguments(self) -> None:
        of_weights = self._model_type is ModelType.SAVED_WEIGHTS
        complaint = ""
        if of_weights is not bool(self._create_model_fn):
            complaint = "model_type=ModelType.SAVED_WEIGHTS and create_model_fn, which makes their model, go together"
        elif of_weights and (self._custom_weights or self._load_model_args):
            complaint = "load_model_args and custom_weights go with ModelType.SAVED_MODEL; model_uri has the weights"
        if complaint:
            raise ConfigurationError(f"{type(self).__qualname__}: {complaint}.")


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
    takes = InputRows.takes  # of the class that makes examples of rows

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the tensors' elements; strings count as references."""
        tensors = map(tensorflow.convert_to_tensor, arrays_in(batch))
        return sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in tensors)

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """As ``TFModelHandlerNumpy``'s, with a tensor in place of the array."""
        example = super().example_from_row(row)
        return example if self._columns_are_inputs else tensorflow.constant(example)

    def _rows_of(self, columns: Any) -> Any:
        rows = super()._rows_of(columns)
        return rows if self._columns_are_inputs else tensorflow.convert_to_tensor(rows)
