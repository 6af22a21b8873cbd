"""Runs TensorRT engines on numpy arrays; arguments as ``apache_beam.ml.inference``'s handler.

Written against the interfaces of TensorRT 10 and cuda-python 12.8 and later, imported where an engine is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from headrace.core.conversion import FLOAT32_MAX, to_numbers, to_results
from headrace.core.errors import ConfigurationError, MissingExtraError, PredictionCountError
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS

try:
    import numpy
except ImportError as error:
    raise MissingExtraError("numpy", "tensorrt") from error

__all__ = ["TensorRTEngine", "TensorRTEngineHandlerNumPy", "default_tensorrt_inference_fn"]

_OLDEST = 10
"""TensorRT's version from which on engines speak of tensors by name."""


class Tensor(NamedTuple):
    """One of an engine's inputs or outputs, as its buffers are made for it."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    """As the engine declares it: -1 where it may vary."""
    largest: tuple[int, ...]
    """The shape that its buffers have room for."""
    is_input: bool

    @property
    def nbytes(self) -> int:
        """Bytes of its buffer."""
        return int(numpy.prod(self.largest, dtype=numpy.int64)) * int(numpy.dtype(self.dtype).itemsize)


def to_feed(batch: Sequence[Any], tensor: Tensor) -> Any:
    """A batch as one array, as an input takes it.

    Args:
        batch: arrays of one shape, that of the input without its first dimension.
        tensor: the input. If its first dimension is fixed, rows of zeros are added up to it.

    Raises:
        ValueError: the batch, or an example, is not of a shape that the engine takes.
    """
    rows = numpy.stack([numpy.asarray(example) for example in batch]).astype(tensor.dtype, copy=False)
    fits = len(rows.shape) == len(tensor.shape) and all(
        of_engine in (-1, of_row) for of_row, of_engine in zip(rows.shape[1:], tensor.shape[1:], strict=True)
    )
    if not fits or any(here > most for here, most in zip(rows.shape, tensor.largest, strict=True)):
        raise ValueError(
            f"the engine's input {tensor.name!r} has the shape {tensor.shape}, {tensor.largest} at most; "
            f"{len(batch)} examples of shape {rows.shape[1:]} do not fit."
        )
    if tensor.shape[0] > len(rows):
        rows = numpy.concatenate([rows, numpy.zeros((tensor.shape[0] - len(rows), *rows.shape[1:]), rows.dtype)])
    return numpy.ascontiguousarray(rows)


def to_rows(outputs: Sequence[Any], count: int) -> list[list[Any]]:
    """For each of the first ``count`` examples its row of each output, in memory of its own.

    Raises:
        PredictionCountError: an output has no row for each example.
    """
    for output in outputs:
        if output.ndim == 0 or len(output) < count:
            raise PredictionCountError(f"an output of shape {output.shape} has no row for each of {count} examples.")
    return [[output[index].copy() for output in outputs] for index in range(count)]


class TensorRTEngine:
    """An engine with what it needs to run: a context, a stream, buffers; all are freed with this object.

    Args:
        engine: a ``tensorrt.ICudaEngine``.

    Raises:
        MissingExtraError: TensorRT or cuda-python is not installed.
        ConfigurationError: TensorRT is older than 10.
    """

    def __init__(self, engine: Any) -> None:
        trt = _tensorrt()
        self.engine = engine
        self.context_lock = threading.RLock()
        self._resources = contextlib.ExitStack()
        weakref.finalize(self, self._resources.close)
        self._cuda = _Cuda(self._resources)
        self.context = engine.create_execution_context()
        if self.context is None:
            raise RuntimeError("TensorRT could not make a context for the engine; its log says why.")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        is_input = {name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        for name in names:
            if is_input[name] and -1 in tuple(engine.get_tensor_shape(name)):
                self.context.set_input_shape(name, engine.get_tensor_profile_shape(name, 0)[2])
        self.tensors = [self._tensor(trt, name, is_input[name]) for name in names]
        self.gpu_allocations = [self._cuda.memory(tensor.nbytes) for tensor in self.tensors]
        for name, allocation in zip(names, self.gpu_allocations, strict=True):
            self.context.set_tensor_address(name, int(allocation))
        bound = [self._bound(*item) for item in enumerate(zip(self.tensors, self.gpu_allocations, strict=True))]
        self.inputs = [binding for binding in bound if is_input[binding["name"]]]
        self.outputs = [binding for binding in bound if not is_input[binding["name"]]]
        self.cpu_allocations = [numpy.zeros(binding["shape"], binding["dtype"]) for binding in self.outputs]
        self.stream = self._cuda.stream()
        self._cuda.enter_to_close()

    def get_engine_attrs(self) -> tuple[Any, ...]:
        """For an ``inference_fn``: engine, context, its lock, inputs, outputs, memory on the GPU and here, stream."""
        return (
            *(self.engine, self.context, self.context_lock, self.inputs, self.outputs),
            *(self.gpu_allocations, self.cpu_allocations, self.stream),
        )

    def run(self, batch: Sequence[Any]) -> list[list[Any]]:
        """For each example its row of each output.

        Raises:
            ValueError: the batch does not fit the engine's only input, or the engine has several.
            RuntimeError: CUDA or TensorRT fails.
        """
        inputs = [tensor for tensor in self.tensors if tensor.is_input]
        if len(inputs) != 1:
            raise ValueError(f"the engine has {len(inputs)} inputs; give the handler an inference_fn that feeds them.")
        fed = to_feed(batch, inputs[0])
        with self.context_lock:
            self._cuda.enter()
            if -1 in inputs[0].shape and not self.context.set_input_shape(inputs[0].name, fed.shape):
                raise RuntimeError(f"TensorRT refuses the shape {fed.shape} of input {inputs[0].name!r}.")
            self._cuda.copy_in(self.inputs[0]["allocation"], fed, self.stream)
            if not self.context.execute_async_v3(int(self.stream)):
                raise RuntimeError("TensorRT could not run the engine; its log says why.")
            outputs = [
                numpy.empty(tuple(self.context.get_tensor_shape(output["name"])), output["dtype"])
                for output in self.outputs
            ]
            for output, binding in zip(outputs, self.outputs, strict=True):
                self._cuda.copy_out(output, binding["allocation"], self.stream)
            self._cuda.wait(self.stream)
        return to_rows(outputs, len(batch))

    def _tensor(self, trt: Any, name: str, is_input: bool) -> Tensor:
        dtype = numpy.dtype(trt.nptype(self.engine.get_tensor_dtype(name)))
        declared, largest = (tuple(found.get_tensor_shape(name)) for found in (self.engine, self.context))
        if -1 in largest:
            raise RuntimeError(f"the largest shape of {name!r} is not known: it depends on the data.")
        return Tensor(name, dtype, declared, largest, is_input)

    @staticmethod
    def _bound(index: int, pair: tuple[Tensor, Any]) -> dict[str, Any]:
        tensor, allocation = pair
        found = {"index": index, "name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.largest)}
        return {**found, "allocation": allocation, "size": tensor.nbytes}


class _Cuda:
    """What is needed of CUDA's driver; what is taken from it is given back when ``resources`` are closed."""

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._driver = _driver()
        self._resources = resources
        self._call(self._driver.cuInit(0))
        device = self._call(self._driver.cuDeviceGet(0))
        self._context = self._call(self._driver.cuDevicePrimaryCtxRetain(device))
        self.enter()  # it is the process's own, which TensorRT has, too, and stays

    def enter(self) -> None:
        """For this thread: a context is current in the thread that made it alone."""
        self._call(self._driver.cuCtxSetCurrent(self._context))

    def memory(self, nbytes: int) -> Any:
        """On the device."""
        allocation = self._call(self._driver.cuMemAlloc(max(1, nbytes)))
        self._resources.callback(self._driver.cuMemFree, allocation)
        return allocation

    def stream(self) -> Any:
        """A new one."""
        stream = self._call(self._driver.cuStreamCreate(0))
        self._resources.callback(self._driver.cuStreamDestroy, stream)
        return stream

    def enter_to_close(self) -> None:
        """Has whatever thread closes the resources enter first; to be called when there are no more to come."""
        self._resources.callback(self._driver.cuCtxSetCurrent, self._context)

    def copy_in(self, allocation: Any, array: Any, stream: Any) -> None:
        """To the device; the array must live until the stream has been waited for."""
        self._call(self._driver.cuMemcpyHtoDAsync(allocation, array.ctypes.data, array.nbytes, stream))

    def copy_out(self, array: Any, allocation: Any, stream: Any) -> None:
        """From the device, as ``copy_in``."""
        self._call(self._driver.cuMemcpyDtoHAsync(array.ctypes.data, allocation, array.nbytes, stream))

    def wait(self, stream: Any) -> None:
        """Until all that was put into the stream is done."""
        self._call(self._driver.cuStreamSynchronize(stream))

    def _call(self, answer: Any) -> Any:
        error, *values = answer
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA failed: {error}.")
        return values[0] if values else None


def default_tensorrt_inference_fn(
    batch: Sequence[numpy.ndarray[Any, Any]],
    engine: TensorRTEngine,
    inference_args: dict[str, Any] | None = None,  # noqa: ARG001 - every inference_fn has it
) -> Iterable[PredictionResult]:
    """For each example a list with its row of each output."""
    return to_results(batch, engine.run(batch))


TensorRTInferenceFn = Callable[
    [Sequence["numpy.ndarray[Any, Any]"], TensorRTEngine, "dict[str, Any] | None"], Iterable[PredictionResult]
]


class TensorRTEngineHandlerNumPy(ModelHandler["numpy.ndarray[Any, Any]", PredictionResult, TensorRTEngine]):
    """Predicts for numpy arrays with an engine: an example is its input's shape without the first dimension.

    Args:
        min_batch_size: a target for the number of examples in a batch.
        max_batch_size: the largest batch that the engine takes.
        inference_fn: ``(batch, engine, inference_args)`` gives one ``PredictionResult`` for each example.
        engine_path: path or URI of a serialized engine.
        onnx_path: path or URI of an ONNX model, from which an engine is built wherever it is loaded, which takes long.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: there is no path, or there are two.
    """

    card = CARDS["tensorrt_inference.TensorRTEngineHandlerNumPy"]

    model_parameter: ClassVar[str] = "engine_path"
    """What the command line's ``--model`` stands for."""

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
        """The engine in the file, or one that is built of the ONNX model."""
        if self.engine_path is None:
            return self.build_engine(*self.load_onnx())
        trt = _tensorrt()
        with open_uri(self.engine_path) as file:
            return TensorRTEngine(_deserialized(trt, file.read(), self.engine_path))

    def load_onnx(self) -> tuple[Any, Any]:
        """The network of the ONNX model, and its builder.

        Raises:
            ValueError: it cannot be parsed.
        """
        trt = _tensorrt()
        builder = trt.Builder(_logger(trt))
        network = builder.create_network()
        parser = trt.OnnxParser(network, _logger(trt))
        assert self.onnx_path is not None
        with open_uri(self.onnx_path) as file:
            if not parser.parse(file.read()):
                reasons = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
                raise ValueError(f"TensorRT cannot parse {self.onnx_path}: {reasons}")
        return network, builder

    def build_engine(self, network: Any, builder: Any) -> TensorRTEngine:
        """An engine for this device.

        Raises:
            RuntimeError: it cannot be built.
        """
        trt = _tensorrt()
        plan = builder.build_serialized_network(network, builder.create_builder_config())
        if plan is None:
            raise RuntimeError("TensorRT could not build an engine; its log says why.")
        return TensorRTEngine(_deserialized(trt, plan, str(self.onnx_path)))

    def run_inference(
        self,
        batch: Sequence[numpy.ndarray[Any, Any]],
        model: TensorRTEngine,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Predicts for arrays of equal shape."""
        for result in self.inference_fn(batch, model, inference_args):
            is_anonymous = isinstance(result, PredictionResult) and result.model_id is None
            yield result._replace(model_id=self.engine_path or self.onnx_path) if is_anonymous else result

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """None are taken.

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

    def get_num_bytes(self, batch: Sequence[numpy.ndarray[Any, Any]]) -> int:
        """Bytes of the arrays' elements."""
        return sum(numpy.asarray(array).nbytes for array in batch)

    def get_metrics_namespace(self) -> str:
        """Beam's for TensorRT."""
        return "BeamML_TensorRT"

    def example_from_row(self, row: Mapping[str, Any]) -> numpy.ndarray[Any, Any]:
        """A row's columns, in their order, as a 1-D array of 32-bit floats.

        Raises:
            ValueError: a value is no finite 32-bit number; names the column and the value.
        """
        return numpy.array(to_numbers(row, FLOAT32_MAX), dtype=numpy.float32)


def _deserialized(trt: Any, plan: Any, path: str) -> Any:
    engine = trt.Runtime(_logger(trt)).deserialize_cuda_engine(plan)
    if engine is None:
        raise RuntimeError(
            f"TensorRT {trt.__version__} cannot read the engine {path}; it must have been built by this version, for "
            "this kind of GPU."
        )
    return engine


@functools.cache
def _tensorrt() -> Any:
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingExtraError("tensorrt", "tensorrt") from error
    if int(trt.__version__.partition(".")[0]) < _OLDEST:
        raise ConfigurationError(f"TensorRT {trt.__version__} is too old; install {_OLDEST} or later.")
    return trt


@functools.cache
def _logger(trt: Any) -> Any:
    logger = trt.Logger(trt.Logger.INFO)
    trt.init_libnvinfer_plugins(logger, "")
    return logger


@functools.cache
def _driver() -> Any:
    for module in ("cuda.bindings.driver", "cuda.cuda"):  # the second is of versions before 12.8
        with contextlib.suppress(ImportError):
            return importlib.import_module(module)
    raise MissingExtraError("cuda-python", "tensorrt")
