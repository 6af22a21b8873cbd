"""Runs TensorRT engines on numpy arrays; arguments as ``apache_beam.ml.inference``'s handler.

Written against the interfaces of TensorRT 10 and cuda-python 12.8, imported where an engine is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.core.answer import predictions_of, with_model_id
from headrace.core.conversion import to_results
from headrace.core.errors import ConfigurationError, PredictionCountError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.base import FrameworkHandler

with extra_required("tensorrt"):
    import numpy

from headrace.handlers.array_batches import Array, InputRows

__all__ = ["TensorRTEngine", "TensorRTEngineHandlerNumPy", "default_tensorrt_inference_fn"]


class TensorRTEngine:
    """A ``tensorrt.ICudaEngine`` with its context, stream and buffers; they are freed with this object."""

    def __init__(self, engine: Any) -> None:
        trt = _tensorrt()
        self.engine = engine
        self.context_lock = threading.RLock()
        self._resources = contextlib.ExitStack()
        weakref.finalize(self, self._resources.close)
        self._device = _cuda("cuDevicePrimaryCtxRetain", _cuda("cuDeviceGet", 0))
        _cuda("cuCtxSetCurrent", self._device)  # the process's primary context, which TensorRT uses, too
        self.context = engine.create_execution_context()
        if self.context is None:
            raise RuntimeError("TensorRT could not make a context for the engine; its log says why.")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        for name in inputs:
            if -1 in tuple(engine.get_tensor_shape(name)):
                self.context.set_input_shape(name, engine.get_tensor_profile_shape(name, 0)[2])
        dtypes = [trt.nptype(engine.get_tensor_dtype(name)) for name in names]
        bindings = [self._bound(index, *one) for index, one in enumerate(zip(names, dtypes, strict=True))]
        self.inputs = [binding for binding in bindings if binding["name"] in inputs]
        self.outputs = [binding for binding in bindings if binding["name"] not in inputs]
        self.gpu_allocations = [binding["allocation"] for binding in bindings]
        self.cpu_allocations = [numpy.zeros(binding["shape"], binding["dtype"]) for binding in self.outputs]
        self.stream = self._owned("cuStreamCreate", "cuStreamDestroy", 0)
        self._resources.callback(_cuda, "cuCtxSetCurrent", self._device)  # first, in the thread that frees them

    def get_engine_attrs(self) -> tuple[Any, ...]:
        """Beam's tuple for an ``inference_fn``: engine, context, lock, inputs, outputs, GPU and CPU buffers, stream."""
        return (
            *(self.engine, self.context, self.context_lock, self.inputs, self.outputs),
            *(self.gpu_allocations, self.cpu_allocations, self.stream),
        )

    def run(self, batch: Sequence[Any]) -> list[list[Any]]:
        """The row of each output for each example; ValueError if these do not fit the engine's only input."""
        if len(self.inputs) != 1:
            raise ValueError(f"the engine has {len(self.inputs)} inputs; give the handler an inference_fn for them.")
        (given,) = self.inputs
        declared = tuple(self.engine.get_tensor_shape(given["name"]))
        fed = to_feed(batch, given, declared)
        with self.context_lock:
            _cuda("cuCtxSetCurrent", self._device)  # it is current only in threads that entered it
            if -1 in declared and not self.context.set_input_shape(given["name"], fed.shape):
                raise RuntimeError(f"TensorRT refuses the shape {fed.shape} of input {given['name']!r}.")
            _cuda("cuMemcpyHtoDAsync", given["allocation"], fed.ctypes.data, fed.nbytes, self.stream)
            if not self.context.execute_async_v3(int(self.stream)):
                raise RuntimeError("TensorRT could not run the engine; its log says why.")
            shapes = [tuple(self.context.get_tensor_shape(output["name"])) for output in self.outputs]
            outputs = [numpy.empty(shape, one["dtype"]) for shape, one in zip(shapes, self.outputs, strict=True)]
            for array, output in zip(outputs, self.outputs, strict=True):
                _cuda("cuMemcpyDtoHAsync", array.ctypes.data, output["allocation"], array.nbytes, self.stream)
            _cuda("cuStreamSynchronize", self.stream)
        return to_rows(outputs, len(batch))

    def _bound(self, index: int, name: str, dtype: Any) -> dict[str, Any]:
        shape = list(self.context.get_tensor_shape(name))
        if -1 in shape:
            raise RuntimeError(f"the largest shape of {name!r} is not known: it depends on the data.")
        size = int(numpy.prod(shape, dtype=numpy.int64)) * numpy.dtype(dtype).itemsize
        allocation = self._owned("cuMemAlloc", "cuMemFree", max(1, size))
        self.context.set_tensor_address(name, int(allocation))
        found = {"index": index, "name": name, "dtype": numpy.dtype(dtype), "shape": shape}
        return {**found, "allocation": allocation, "size": size}

    def _owned(self, make: str, free: str, argument: int) -> Any:
        made = _cuda(make, argument)
        self._resources.callback(_cuda, free, made)
        return made


def to_feed(batch: Sequence[Any], given: Mapping[str, Any], declared: Sequence[int]) -> Any:
    """Stacks a batch into one array for an input; with rows of zeros, if its first dimension is fixed.

    Args:
        batch: arrays with the shape of the input without its first dimension.
        given: the input's name, its dtype, and the largest shape.
        declared: the shape, -1 where it varies.

    Raises:
        ValueError: the batch, or an example, has a shape that the engine does not take.
    """
    rows = numpy.stack([numpy.asarray(example) for example in batch]).astype(given["dtype"], copy=False)
    fits = rows.ndim == len(declared) and all(
        size in (-1, found) for size, found in zip(declared[1:], rows.shape[1:], strict=True)
    )
    if not fits or any(found > most for found, most in zip(rows.shape, given["shape"], strict=True)):
        raise ValueError(
            f"the engine's input {given['name']!r} has the shape {declared}, {given['shape']} at most; "
            f"{len(batch)} examples of shape {rows.shape[1:]} do not fit."
        )
    if declared[0] > len(rows):
        rows = numpy.concatenate([rows, numpy.zeros((declared[0] - len(rows), *rows.shape[1:]), rows.dtype)])
    return numpy.ascontiguousarray(rows)


def to_rows(outputs: Sequence[Any], count: int) -> list[list[Any]]:
    """The row of each output for each of the first ``count`` examples, in memory of its own."""
    for output in outputs:
        if output.ndim == 0 or len(output) < count:
            raise PredictionCountError(f"an output of shape {output.shape} has no row for each of {count} examples.")
    return [[output[index].copy() for output in outputs] for index in range(count)]


def _cuda(function: str, *arguments: Any) -> Any:
    driver = _driver()
    error, *values = getattr(driver, function)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA failed: {error}.")
    return values[0] if values else None


@functools.cache
def _driver() -> Any:
    with extra_required("tensorrt"):
        driver = importlib.import_module("cuda.bindings.driver")
    driver.cuInit(0)
    return driver


@functools.cache
def _tensorrt() -> Any:
    with extra_required("tensorrt"):
        return importlib.import_module("tensorrt")


@functools.cache
def _logger() -> Any:
    """TensorRT's logger, with its plug-ins loaded."""
    trt = _tensorrt()
    logger = trt.Logger(trt.Logger.INFO)
    trt.init_libnvinfer_plugins(logger, "")
    return logger


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


class TensorRTEngineHandlerNumPy(InputRows, FrameworkHandler[Array, TensorRTEngine]):
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

    model_parameter: ClassVar[str] = "engine_path"
    """The parameter that ``--model`` on the command line sets."""
    _metrics_namespace = "BeamML_TensorRT"

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
        options |= {"min_batch_size": min_batch_size, "max_batch_size": max_batch_size}
        super().__init__(engine_path or onnx_path or "", **options)
        if (engine_path is None) is (onnx_path is None):
            raise ConfigurationError(f"{type(self).__qualname__} needs either an engine_path or an onnx_path.")
        self.inference_fn = inference_fn
        self.engine_path = None if engine_path is None else os.fspath(engine_path)
        self.onnx_path = None if onnx_path is None else os.fspath(onnx_path)

    def load_model(self) -> TensorRTEngine:
        """Loads the engine in the file, or builds one from the ONNX model."""
        if self.engine_path is None:
            return self.build_engine(*self.load_onnx())
        _tensorrt()
        with open_uri(self.engine_path) as file:
            return self._engine(file.read())

    def load_onnx(self) -> tuple[Any, Any]:
        """Parses the ONNX model; returns its network and the builder."""
        trt = _tensorrt()
        builder = trt.Builder(_logger())
        network = builder.create_network()
        parser = trt.OnnxParser(network, _logger())
        assert self.onnx_path is not None
        with open_uri(self.onnx_path) as file:
            if not parser.parse(file.read()):
                reasons = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
                raise ValueError(f"TensorRT cannot parse {self.onnx_path}: {reasons}")
        return network, builder

    def build_engine(self, network: Any, builder: Any) -> TensorRTEngine:
        """Builds an engine for this device."""
        plan = builder.build_serialized_network(network, builder.create_builder_config())
        if plan is None:
            raise RuntimeError("TensorRT could not build an engine; its log says why.")
        return self._engine(plan)

    def _engine(self, plan: Any) -> TensorRTEngine:
        trt = _tensorrt()
        engine = trt.Runtime(_logger()).deserialize_cuda_engine(plan)
        if engine is None:
            raise RuntimeError(
                f"TensorRT {trt.__version__} cannot read the engine {self._model_uri}; it must have been built by this "
                "version, for this kind of GPU."
            )
        return TensorRTEngine(engine)

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        found = predictions_of(self.inference_fn(batch, model, inference_args), "inference_fn")
        return with_model_id(found, self._model_uri)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ValueError for any: there are none."""
        if inference_args:
            raise ValueError(f"TensorRT engines take no inference_args; leave {sorted(inference_args)} out.")

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` read another file; ``None`` leaves it as it is."""
        super().update_model_path(model_path)
        if self.engine_path is not None:
            self.engine_path = self._model_uri
        else:
            self.onnx_path = self._model_uri
