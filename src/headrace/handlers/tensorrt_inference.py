"""Runs TensorRT engines on numpy arrays; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from headrace.core.conversion import to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.handlers.base import with_model_id
from headrace.handlers.cards import CARDS

with extra_required("tensorrt"):
    import numpy

from headrace.handlers.array_batches import Array, Float32Rows
from headrace.handlers.tensorrt_engine import TensorRTEngine, deserialized, logger_for, tensorrt_module

__all__ = ["TensorRTEngine", "TensorRTEngineHandlerNumPy", "default_tensorrt_inference_fn"]


def default_tensorrt_inference_fn(
    batch: Sequence[numpy.ndarray[Any, Any]],
    engine: TensorRTEngine,
    inference_args: dict[str, Any] | None = None,  # noqa: ARG001 - every inference_fn has it
) -> Iterable[PredictionResult]:
    """Predicts a list with the row of each output for each example."""
    return to_results(batch, engine.run(batch))


TensorRTInferenceFn = Callable[
    [Sequence["numpy.ndarray[Any, Any]"], TensorRTEngine, "dict[str, Any] | None"], Iterable[PredictionResult]
]


class TensorRTEngineHandlerNumPy(Float32Rows, ModelHandler[Array, PredictionResult, TensorRTEngine]):
    """Predicts for numpy arrays: an example has the shape of the engine's input without the first dimension.

    Args:
        min_batch_size: a target for the number of examples in a batch.
        max_batch_size: the largest batch that the engine takes.
        inference_fn: ``(batch, engine, inference_args)`` returns one ``PredictionResult`` for each example.
        engine_path: path or URI of a serialized engine.
        onnx_path: path or URI of an ONNX model; an engine is built from it at each load, which takes long.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: neither path is given, or both are.
    """

    mappable = False

    card = CARDS["tensorrt_inference.TensorRTEngineHandlerNumPy"]

    model_parameter: ClassVar[str] = "engine_path"
    """The parameter that ``--model`` on the command line sets."""

    def __init__(
        self,
        min_batch_size: int,
        max_batch_size: int,
        *,
        inference_fn: TensorRTInferenceFn = default_tensorrt_inference_fn,
        engine_path: str | os.PathLike[str] | None = None,
        onnx_path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(min_batch_size=min_batch_size, max_batch_size=max_batch_size, **options)
        if (engine_path is None) is (onnx_path is None):
            raise ConfigurationError(f"{type(self).__qualname__} needs either an engine_path or an onnx_path.")
        self.inference_fn = inference_fn
        self.engine_path = None if engine_path is None else os.fspath(engine_path)
        self.onnx_path = None if onnx_path is None else os.fspath(onnx_path)

    def load_model(self) -> TensorRTEngine:
        """Loads the engine in the file, or builds one from the ONNX model."""
        if self.engine_path is None:
            return self.build_engine(*self.load_onnx())
        trt = tensorrt_module()
        with open_uri(self.engine_path) as file:
            return TensorRTEngine(deserialized(trt, file.read(), self.engine_path))

    def load_onnx(self) -> tuple[Any, Any]:
        """Parses the ONNX model; returns its network and the builder.

        Raises:
            ValueError: it cannot be parsed.
        """
        trt = tensorrt_module()
        builder = trt.Builder(logger_for(trt))
        network = builder.create_network()
        parser = trt.OnnxParser(network, logger_for(trt))
        assert self.onnx_path is not None
        with open_uri(self.onnx_path) as file:
            if not parser.parse(file.read()):
                reasons = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
                raise ValueError(f"TensorRT cannot parse {self.onnx_path}: {reasons}")
        return network, builder

    def build_engine(self, network: Any, builder: Any) -> TensorRTEngine:
        """Builds an engine for this device.

        Raises:
            RuntimeError: it cannot be built.
        """
        trt = tensorrt_module()
        plan = builder.build_serialized_network(network, builder.create_builder_config())
        if plan is None:
            raise RuntimeError("TensorRT could not build an engine; its log says why.")
        return TensorRTEngine(deserialized(trt, plan, str(self.onnx_path)))

    def run_inference(
        self,
        batch: Sequence[numpy.ndarray[Any, Any]],
        model: TensorRTEngine,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Predicts for arrays of equal shape."""
        yield from with_model_id(self.inference_fn(batch, model, inference_args), self.engine_path or self.onnx_path)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Refuses all arguments.

        Raises:
            ValueError: there are some.
        """
        if inference_args:
            raise ValueError(f"TensorRT engines take no inference_args; leave {sorted(inference_args)} out.")

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` read another file; ``None`` leaves it as it is."""
        if model_path and self.engine_path is not None:
            self.engine_path = model_path
        elif model_path:
            self.onnx_path = model_path

    def get_metrics_namespace(self) -> str:
        """Beam's for TensorRT."""
        return "BeamML_TensorRT"
