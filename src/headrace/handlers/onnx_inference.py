"""Runs ONNX models on numpy arrays; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.core.conversion import FLOAT32_MAX, to_matrix, to_numbers, to_results
from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS

try:
    import numpy
except ImportError as error:
    raise MissingExtraError("numpy", "onnx") from error
try:
    import onnxruntime
except ImportError as error:
    raise MissingExtraError("onnxruntime", "onnx") from error

from headrace.handlers.array_batches import stacked_alike

__all__ = ["OnnxModelHandlerNumpy", "default_numpy_inference_fn"]

NumpyInferenceFn = Callable[
    [onnxruntime.InferenceSession, Sequence["numpy.ndarray[Any, Any]"], "dict[str, Any] | None"], Any
]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": "object",
    **{f"tensor({name})": name for name in ("float16", "int8", "int16", "int32", "int64", "bool")},
    **{f"tensor({name})": name for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""numpy's, by ONNX Runtime's name."""

_CUDA_OR_CPU = ("CUDAExecutionProvider", "CPUExecutionProvider")


def default_numpy_inference_fn(
    inference_session: onnxruntime.InferenceSession,
    batch: Sequence[numpy.ndarray[Any, Any]],
    inference_args: dict[str, Any] | None = None,
) -> Any:
    """The model's first output for the stacked batch as its first input; ``inference_args`` are further inputs.

    Numbers become those that the input is declared to take, see ``headrace.handlers.array_batches.fitted``. A model of
    batches of one size gets such; what the last one lacks is filled up with copies of its last row.

    Raises:
        TypeError, ValueError: an example is of something else.
    """
    first = inference_session.get_inputs()[0]

    def run(rows: Any) -> Any:
        return inference_session.run(None, {first.name: rows, **(inference_args or {})})[0]

    size = first.shape[0] if first.shape and isinstance(first.shape[0], int) else None
    predict = partial(_in_batches_of, size, run) if size else run
    return stacked_alike(batch, predict, _DTYPES.get(first.type))


class OnnxModelHandlerNumpy(ModelHandler["numpy.ndarray[Any, Any]", PredictionResult, onnxruntime.InferenceSession]):
    """Predicts for numpy arrays: an example is an array of the model's input's shape without the batch dimension.

    Args:
        model_uri: path or URI of the model's file. Weights that lie in files of their own beside it are found where it
            is a path of this machine.
        session_options: an ``onnxruntime.SessionOptions``, or a function that makes one; a pipeline needs the function,
            since the options themselves cannot be pickled.
        providers: execution providers in order of preference; by default CUDA's where this machine has it, else the
            CPU's. None: ONNX Runtime's own choice.
        provider_options: a dict of options for each provider.
        inference_fn: ``(session, batch, inference_args)`` gives one prediction for each example of the batch, or a
            dict of such sequences.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``providers`` is a string: ONNX Runtime takes it apart, finds nothing and uses the CPU.
    """

    card = CARDS["onnx_inference.OnnxModelHandlerNumpy"]

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        session_options: Any = None,
        providers: Sequence[Any] | None = _CUDA_OR_CPU,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        inference_fn: NumpyInferenceFn = default_numpy_inference_fn,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if isinstance(providers, str):
            raise ConfigurationError(f"providers must be a list: [{providers!r}].")
        self._model_uri = os.fspath(model_uri)
        self._session_options = session_options
        self._providers = None if providers is None else list(providers)
        self._provider_options = provider_options
        self._inference_fn = inference_fn

    def load_model(self) -> onnxruntime.InferenceSession:
        """A session with the model in the file."""
        options = self._session_options
        return onnxruntime.InferenceSession(
            _path_or_content(self._model_uri),
            sess_options=options() if callable(options) else options,
            providers=self._usable_providers(),
            provider_options=self._provider_options,
        )

    def run_inference(
        self,
        batch: Sequence[numpy.ndarray[Any, Any]],
        model: onnxruntime.InferenceSession,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Predicts; arrays of equal shape go together."""
        return to_results(batch, self._inference_fn(model, batch, inference_args), self._model_uri)

    def run_columns(
        self, columns: Any, model: onnxruntime.InferenceSession, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of an array, or of columns that make a matrix of 32-bit floats."""
        rows: Any = to_matrix(columns, numpy, "float32")
        return PredictionResult(columns, self._inference_fn(model, rows, inference_args), self._model_uri)

    def columns_equal_rows(self) -> bool:
        """Whether ``run_columns`` predicts what ``run_inference`` does: an ``inference_fn`` may need single rows."""
        return self._inference_fn is default_numpy_inference_fn

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` read another file; ``None`` leaves it as it is."""
        self._model_uri = model_path or self._model_uri

    def get_num_bytes(self, batch: Sequence[numpy.ndarray[Any, Any]]) -> int:
        """Bytes of the arrays' elements; lists of numbers count as the arrays that they become."""
        return sum(numpy.asarray(array).nbytes for array in batch)

    def get_metrics_namespace(self) -> str:
        """Beam's for ONNX."""
        return "BeamML_Onnx"

    def example_from_row(self, row: Mapping[str, Any]) -> numpy.ndarray[Any, Any]:
        """A row's columns, in their order, as a 1-D array of 32-bit floats.

        Raises:
            ValueError: a value is no finite 32-bit number; names the column and the value.
        """
        return numpy.array(to_numbers(row, FLOAT32_MAX), dtype=numpy.float32)

    def _usable_providers(self) -> list[Any] | None:
        """Those asked for; of the default ones those that are here, since onnxruntime warns of every other."""
        if self._provider_options is not None or self._providers != list(_CUDA_OR_CPU):
            return self._providers
        available = onnxruntime.get_available_providers()
        return [provider for provider in self._providers if provider in available]


def _in_batches_of(size: int, run: Callable[[Any], Any], rows: Any) -> Any:
    answers = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        lacking = size - len(part)
        full = numpy.concatenate([part, part[-1:].repeat(lacking, axis=0)]) if lacking else part
        answers.append(run(full)[: len(part)])
    return numpy.concatenate(answers)


def _path_or_content(uri: str) -> str | bytes:
    """What a session is made from; only beside a path does onnxruntime find weights in files of their own."""
    if os.path.isfile(uri):
        return uri
    with open_uri(uri) as file:
        return file.read()
