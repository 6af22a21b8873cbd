"""A TensorRT engine with its buffers on the GPU.

Written against the interfaces of TensorRT 10 and cuda-python 12.8 and later, imported where an engine is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError, MissingExtraError, PredictionCountError, extra_required

with extra_required("tensorrt"):
    import numpy

__all__ = ["Tensor", "TensorRTEngine", "deserialized", "logger_for", "tensorrt_module", "to_feed", "to_rows"]

_OLDEST = 10
"""The first version of TensorRT whose engines name their tensors."""


class Tensor(NamedTuple):
    """One of an engine's inputs or outputs, for which a buffer is allocated."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    """As the engine declares it; -1: the dimension varies."""
    largest: tuple[int, ...]
    """The largest shape for which its buffer has room."""
    is_input: bool

    @property
    def nbytes(self) -> int:
        """Bytes of its buffer."""
        return int(numpy.prod(self.largest, dtype=numpy.int64)) * int(numpy.dtype(self.dtype).itemsize)


def to_feed(batch: Sequence[Any], tensor: Tensor) -> Any:
    """Stacks a batch into one array for an input.

    Args:
        batch: arrays with the shape of the input without its first dimension.
        tensor: the input. If its first dimension is fixed, rows of zeros are added to fill it.

    Raises:
        ValueError: the batch, or an example, has a shape that the engine does not take.
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
    """The row of each output for each of the first ``count`` examples, in memory of its own.

    Raises:
        PredictionCountError: an output has no row for each example.
    """
    for output in outputs:
        if output.ndim == 0 or len(output) < count:
            raise PredictionCountError(f"an output of shape {output.shape} has no row for each of {count} examples.")
    return [[output[index].copy() for output in outputs] for index in range(count)]


class TensorRTEngine:
    """An engine with its context, stream and buffers; they are freed with this object.

    Args:
        engine: a ``tensorrt.ICudaEngine``.

    Raises:
        MissingExtraError: TensorRT or cuda-python is not installed.
        ConfigurationError: TensorRT is older than 10.
    """

    def __init__(self, engine: Any) -> None:
        trt = tensorrt_module()
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
        """Beam's tuple for an ``inference_fn``: engine, context, lock, inputs, outputs, GPU and CPU buffers, stream."""
        return (
            *(self.engine, self.context, self.context_lock, self.inputs, self.outputs),
            *(self.gpu_allocations, self.cpu_allocations, self.stream),
        )

    def run(self, batch: Sequence[Any]) -> list[list[Any]]:
        """Runs a batch; returns the row of each output for each example.

        Raises:
            ValueError: the batch does not fit the input, or the engine has several inputs.
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
    """The calls of CUDA's driver that an engine needs; memory and streams are freed when ``resources`` closes."""

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._driver = _driver()
        self._resources = resources
        self._call(self._driver.cuInit(0))
        device = self._call(self._driver.cuDeviceGet(0))
        self._context = self._call(self._driver.cuDevicePrimaryCtxRetain(device))
        self.enter()  # the process's primary context, which TensorRT uses too; it is never released

    def enter(self) -> None:
        """Makes the context current in this thread; a context is current only in threads that entered it."""
        self._call(self._driver.cuCtxSetCurrent(self._context))

    def memory(self, nbytes: int) -> Any:
        """Allocates memory on the device."""
        allocation = self._call(self._driver.cuMemAlloc(max(1, nbytes)))
        self._resources.callback(self._driver.cuMemFree, allocation)
        return allocation

    def stream(self) -> Any:
        """A new stream."""
        stream = self._call(self._driver.cuStreamCreate(0))
        self._resources.callback(self._driver.cuStreamDestroy, stream)
        return stream

    def enter_to_close(self) -> None:
        """Makes the thread that closes the resources enter the context first; call it after all allocations."""
        self._resources.callback(self._driver.cuCtxSetCurrent, self._context)

    def copy_in(self, allocation: Any, array: Any, stream: Any) -> None:
        """Copies an array to the device; it must live until ``wait`` returns."""
        self._call(self._driver.cuMemcpyHtoDAsync(allocation, array.ctypes.data, array.nbytes, stream))

    def copy_out(self, array: Any, allocation: Any, stream: Any) -> None:
        """Copies from the device into an array, which must live until ``wait`` returns."""
        self._call(self._driver.cuMemcpyDtoHAsync(array.ctypes.data, allocation, array.nbytes, stream))

    def wait(self, stream: Any) -> None:
        """Waits until the stream has finished."""
        self._call(self._driver.cuStreamSynchronize(stream))

    def _call(self, answer: Any) -> Any:
        error, *values = answer
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA failed: {error}.")
        return values[0] if values else None


def deserialized(trt: Any, plan: Any, path: str) -> Any:
    """The engine that a serialized plan contains.

    Raises:
        RuntimeError: the plan was built by another version, or for another kind of GPU.
    """
    engine = trt.Runtime(logger_for(trt)).deserialize_cuda_engine(plan)
    if engine is None:
        raise RuntimeError(
            f"TensorRT {trt.__version__} cannot read the engine {path}; it must have been built by this version, for "
            "this kind of GPU."
        )
    return engine


@functools.cache
def tensorrt_module() -> Any:
    """TensorRT.

    Raises:
        MissingExtraError: it is not installed.
        ConfigurationError: it is older than 10.
    """
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingExtraError("tensorrt", "tensorrt") from error
    if int(trt.__version__.partition(".")[0]) < _OLDEST:
        raise ConfigurationError(f"TensorRT {trt.__version__} is too old; install {_OLDEST} or later.")
    return trt


@functools.cache
def logger_for(trt: Any) -> Any:
    """TensorRT's logger, with its plug-ins loaded."""
    logger = trt.Logger(trt.Logger.INFO)
    trt.init_libnvinfer_plugins(logger, "")
    return logger


@functools.cache
def _driver() -> Any:
    for module in ("cuda.bindings.driver", "cuda.cuda"):  # before version 12.8, the second
        with contextlib.suppress(ImportError):
            return importlib.import_module(module)
    raise MissingExtraError("cuda-python", "tensorrt")
