"""Runs ONNX models on numpy arrays; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.core.beam_compat import with_beams_attributes
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri

with extra_required("onnx"):
    import numpy
    import onnxruntime

from headrace.handlers.array_batches import ArrayPredictions, InputRows, predict_arrays

__all__ = ["OnnxModelHandlerNumpy", "default_numpy_inference_fn"]

NumpyInferenceFn = Callable[
    [onnxruntime.InferenceSession, Sequence["numpy.ndarray[Any, Any]"], "dict[str, Any] | None"], Any
]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": "object",
    **{
        f"tensor({name})": name
        for name in ["float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
    },
}
"""numpy's, by ONNX Runtime's name."""

_CUDA_OR_CPU = ("CUDAExecutionProvider", "CPUExecutionProvider")


def default_numpy_inference_fn(
    inference_session: onnxruntime.InferenceSession,
    batch: Sequence[numpy.ndarray[Any, Any]],
    inference_args: dict[str, Any] | None = None,
) -> Any:
    """The model's first output for the stacked batch as its first input; ``inference_args`` are further inputs.

    Numbers are converted to the dtype that the input declares, as ``headrace.handlers.array_batches.fitted`` does. If
    the model takes batches of one size only, the last one is filled up with copies of its last row. Of examples that
    are dicts, or of a dict of columns, each array is the input of its name.

    Raises:
        TypeError, ValueError: an example cannot be converted.
    """
    first, arguments = inference_session.get_inputs()[0], inference_args or {}
    size = first.shape[0] if first.shape and isinstance(first.shape[0], int) else None

    def inputs() -> dict[str, tuple[Any, int]]:
        return {one.name: (_DTYPES.get(one.type), len(one.shape)) for one in inference_session.get_inputs()}

    def ask(given: Any) -> Any:
        feeds = given if isinstance(given, Mapping) else {first.name: given}
        return inference_session.run(None, {**feeds, **arguments})[0]

    def ask_in_parts(given: Any) -> Any:
        return _in_batches_of(size, ask, given) if size and not isinstance(given, Mapping) else ask(given)

    return predict_arrays(batch, ask_in_parts, _DTYPES.get(first.type), inputs)


@with_beams_attributes
class OnnxModelHandlerNumpy(InputRows, ArrayPredictions):
    """Predicts for numpy arrays: an example is an array of the model's input's shape without the batch dimension.

    Args:
        model_uri: path or URI of the model's file. Weights in separate files beside it are found if it is a local path.
        session_options: an ``onnxruntime.SessionOptions``, or a function that makes one. A pipeline needs the function,
            since the options themselves cannot be pickled.
        providers: execution providers in order of preference; by default CUDA's if this machine has it, else the CPU's.
            None: ONNX Runtime's own choice.
        provider_options: a dict of options for each provider.
        inference_fn: ``(session, batch, inference_args)`` returns one prediction for each example of the batch, or a
            dict of such sequences.
        columns_are_inputs: for files and tables, whether each column is the input of its name; if not, all columns
            together are the first input.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``providers`` is a string; ONNX Runtime would read it letter by letter and use the CPU.
    """

    mappable = False

    _metrics_namespace = "BeamML_Onnx"
    _default_inference_fn = staticmethod(default_numpy_inference_fn)

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        session_options: Any = None,
        providers: Sequence[Any] | None = _CUDA_OR_CPU,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        inference_fn: NumpyInferenceFn = default_numpy_inference_fn,
        columns_are_inputs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model_uri, inference_fn, **options)
        if isinstance(providers, str):
            raise ConfigurationError(f"providers must be a list: [{providers!r}].")
        self._session_options = session_options
        self._providers = None if providers is None else list(providers)
        self._provider_options = provider_options
        self._columns_are_inputs = columns_are_inputs

    def load_model(self) -> onnxruntime.InferenceSession:
        """Makes a session with the model in the file; of the default providers with those that this machine has."""
        content: Any = self._model_uri  # a local path, beside which onnxruntime finds separate weights
        if not os.path.isfile(content):
            with open_uri(content) as file:
                content = file.read()
        options, providers = self._session_options, self._providers
        if self._provider_options is None and providers == list(_CUDA_OR_CPU):  # onnxruntime warns about others
            available = onnxruntime.get_available_providers()
            providers = [provider for provider in providers if provider in available]
        return onnxruntime.InferenceSession(
            content,
            sess_options=options() if callable(options) else options,
            providers=providers,
            provider_options=self._provider_options,
        )


def _in_batches_of(size: int, run: Callable[[Any], Any], rows: Any) -> Any:
    answers = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        lacking = size - len(part)
        full = numpy.concatenate([part, part[-1:].repeat(lacking, axis=0)]) if lacking else part
        answers.append(run(full)[: len(part)])
    return numpy.concatenate(answers)
