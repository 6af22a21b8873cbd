"""Runs PyTorch models on tensors or on dicts of tensors; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from headrace.core.card import HandlerCard
from headrace.core.conversion import FLOAT32_MAX, column_numbers, single_output, to_matrix, to_numbers, to_results
from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult

try:
    import numpy
except ImportError as error:
    raise MissingExtraError("numpy", "pytorch") from error
try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "pytorch") from error

__all__ = [
    "PytorchModelHandlerKeyedTensor",
    "PytorchModelHandlerTensor",
    "default_keyed_tensor_inference_fn",
    "default_tensor_inference_fn",
    "make_keyed_tensor_model_fn",
    "make_tensor_model_fn",
]

_LOGGER = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_DEVICES = {"CPU": _CPU, "GPU": torch.device("cuda")}

_WEIGHTS = "mapped on the CPU; on a GPU, and of TorchScript, in one host"
_THREADS = "safe"

TensorT = TypeVar("TensorT")

InferenceFn = Callable[
    [Sequence[TensorT], torch.nn.Module, torch.device, "dict[str, Any] | None", "str | None"],
    Iterable[PredictionResult],
]
TensorInferenceFn = InferenceFn[torch.Tensor]
KeyedTensorInferenceFn = InferenceFn[dict[str, torch.Tensor]]


class _ModelArgumentsError(ConfigurationError, RuntimeError):
    """Arguments that name no model, half of one, or two; a RuntimeError, as Beam raises here."""


class _PytorchModelHandler(ModelHandler[TensorT, PredictionResult, torch.nn.Module]):
    """What the two handlers have in common: the model and its device."""

    _default_inference_fn: Callable[..., Iterable[PredictionResult]]

    def __init__(
        self,
        state_dict_path: str | os.PathLike[str] | None = None,
        model_class: Callable[..., torch.nn.Module] | None = None,
        model_params: dict[str, Any] | None = None,
        device: str = "CPU",
        *,
        inference_fn: InferenceFn[TensorT] | None = None,
        torch_script_model_path: str | os.PathLike[str] | None = None,
        load_model_args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if device not in _DEVICES:
            raise ConfigurationError(f"device must be 'CPU' or 'GPU', not {device!r}.")
        self._state_dict_path = _as_path(state_dict_path)
        self._model_class = model_class
        self._model_params = model_params or {}
        self._device = _DEVICES[device]
        self._inference_fn = inference_fn or self._default_inference_fn
        self._torch_script_model_path = _as_path(torch_script_model_path)
        self._load_model_args = load_model_args or {}
        self._check_model_arguments()

    def load_model(self) -> torch.nn.Module:
        """The model, in evaluation mode, on its device.

        A GPU that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the
        log.
        """
        if self._device == _CPU:
            return self._load(_CPU)
        if not _cuda_is_usable():
            _LOGGER.warning("device='GPU' was asked for, but no GPU can be used here; the model goes to the CPU.")
            return self._load(_CPU)
        try:
            return self._load(self._device)
        except RuntimeError as error:
            _LOGGER.warning("The model did not load onto the GPU and goes to the CPU: %s", error)
            return self._load(_CPU)

    def run_inference(
        self, batch: Sequence[TensorT], model: torch.nn.Module, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts for examples whose tensors have equal shapes, where the model is."""
        return self._inference_fn(batch, model, self._device_of(model), inference_args or {}, self._model_path())

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` read another file; ``None`` leaves it as it is."""
        if self._torch_script_model_path:
            self._torch_script_model_path = model_path or self._torch_script_model_path
        else:
            self._state_dict_path = model_path or self._state_dict_path

    def get_metrics_namespace(self) -> str:
        """Beam's for PyTorch."""
        return "BeamML_PyTorch"

    def _check_model_arguments(self) -> None:
        """A subclass that loads its model in a way of its own may leave them all out."""
        path, model_class, script = self._state_dict_path, self._model_class, self._torch_script_model_path
        ours = type(self).load_model is _PytorchModelHandler.load_model
        checks = [
            (model_class or not path, "state_dict_path needs model_class: what makes the model with this state"),
            (path or not model_class, "model_class needs state_dict_path: the file with the model's state"),
            (not (script and path), "torch_script_model_path and state_dict_path exclude each other"),
            (path or script or not ours, "give state_dict_path and model_class, or torch_script_model_path"),
        ]
        for good, complaint in checks:
            if not good:
                raise _ModelArgumentsError(f"{type(self).__qualname__}: {complaint}.")

    def _model_path(self) -> str | None:
        return self._torch_script_model_path or self._state_dict_path

    def _load(self, device: torch.device) -> torch.nn.Module:
        with open_uri(str(self._model_path())) as file:
            if self._torch_script_model_path:
                model: torch.nn.Module = torch.jit.load(file, map_location=device, **self._load_model_args)
            else:
                assert self._model_class
                model = self._model_class(**self._model_params)
                model.load_state_dict(torch.load(file, map_location=device, **self._load_model_args))
                model.requires_grad_(requires_grad=False)
        return model.to(device).eval()

    def _device_of(self, model: Any) -> torch.device:
        """Where the model's weights are: another copy of this handler may have loaded it, onto another device."""
        if isinstance(model, torch.nn.Module):
            for tensor in chain(model.parameters(), model.buffers()):
                return tensor.device
        return self._device if self._device == _CPU or _cuda_is_usable() else _CPU


def default_tensor_inference_fn(
    batch: Sequence[torch.Tensor],
    model: torch.nn.Module,
    device: torch.device,
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
    *,
    model_fn: str = "__call__",
) -> Iterable[PredictionResult]:
    """Calls the model, or its method ``model_fn``, on the stacked batch; tensors in its answer come back to the CPU."""
    answer = _answer(_stacked(batch, device), model, inference_args, model_fn)
    return to_results(batch, _rows(answer), model_id)


def make_tensor_model_fn(model_fn: str) -> TensorInferenceFn:
    """An ``inference_fn`` that calls the model's method ``model_fn``, for example ``"generate"``, on the batch."""
    return partial(default_tensor_inference_fn, model_fn=model_fn)


def default_keyed_tensor_inference_fn(
    batch: Sequence[dict[str, torch.Tensor]],
    model: torch.nn.Module,
    device: torch.device,
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
    *,
    model_fn: str = "__call__",
) -> Iterable[PredictionResult]:
    """As ``default_tensor_inference_fn``, with each name's stacked tensors as the keyword argument of that name."""
    with torch.no_grad():
        inputs = {name: _stacked([example[name] for example in batch], device) for name in _names(batch)}
        answer = getattr(model, model_fn)(**inputs, **(inference_args or {}))
    return to_results(batch, _rows(single_output(answer)), model_id)


def make_keyed_tensor_model_fn(model_fn: str) -> KeyedTensorInferenceFn:
    """An ``inference_fn`` that calls the model's method ``model_fn`` on the batch."""
    return partial(default_keyed_tensor_inference_fn, model_fn=model_fn)


class PytorchModelHandlerTensor(_PytorchModelHandler[torch.Tensor]):
    """Predicts for tensors: an example is a tensor of the model's input's shape without the batch dimension.

    Args:
        state_dict_path: path or URI of the model's saved ``state_dict()``; needs ``model_class``.
        model_class: the class of the model, or a function that makes one.
        model_params: keyword arguments for ``model_class``.
        device: ``"CPU"``, or ``"GPU"`` to use CUDA where it can be used and else, with a warning in the log, the CPU.
        inference_fn: ``(batch, model, device, inference_args, model_id)`` gives a PredictionResult for each example;
            by default ``default_tensor_inference_fn``.
        torch_script_model_path: path or URI of a TorchScript model, in place of ``state_dict_path`` and
            ``model_class``.
        load_model_args: keyword arguments for ``torch.load`` or ``torch.jit.load``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the device is another one; or (then it is a RuntimeError too) the arguments name no model,
            half of one, or two.
    """

    card = HandlerCard("a tensor", "its row of the model's answer, on the CPU", _WEIGHTS, _THREADS, "pytorch")

    _default_inference_fn = staticmethod(default_tensor_inference_fn)

    def run_columns(
        self, columns: Any, model: torch.nn.Module, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of a tensor or array, or of columns that make a matrix of 32-bit floats.

        An ``inference_fn`` that is not one of this module's gets the tensor for its batch.
        """
        rows: Any = columns
        if not isinstance(columns, torch.Tensor):
            rows = torch.from_numpy(numpy.require(to_matrix(columns, numpy, "float32"), requirements="W"))
        device, path, function = self._device_of(model), self._model_path(), self._inference_fn
        function, options = (function.func, function.keywords) if isinstance(function, partial) else (function, {})
        if function is default_tensor_inference_fn:
            answer = _answer(rows.to(device), model, inference_args, **options)
            return PredictionResult(columns, _on_cpu(answer), path)
        results = self._inference_fn(rows, model, device, inference_args or {}, path)
        return PredictionResult(columns, [result.inference for result in results], path)

    def columns_equal_rows(self) -> bool:
        """Whether ``run_columns`` predicts what ``run_inference`` does: an ``inference_fn`` may need single rows."""
        function = self._inference_fn.func if isinstance(self._inference_fn, partial) else self._inference_fn
        return function is default_tensor_inference_fn

    def get_num_bytes(self, batch: Sequence[torch.Tensor]) -> int:
        """Bytes of the tensors' elements."""
        return sum(map(_num_bytes, batch))

    def example_from_row(self, row: Mapping[str, Any]) -> torch.Tensor:
        """A row's columns, in their order, as a 1-D tensor of 32-bit floats.

        Raises:
            ValueError: a value is no finite 32-bit number; names the column and the value.
        """
        return torch.tensor(to_numbers(row, FLOAT32_MAX), dtype=torch.float32)


class PytorchModelHandlerKeyedTensor(_PytorchModelHandler[dict[str, torch.Tensor]]):
    """Predicts for dicts of tensors, whose names are those of the model's arguments.

    Args and errors are those of ``PytorchModelHandlerTensor``, but that batches are of dicts, and the default
    ``inference_fn`` is ``default_keyed_tensor_inference_fn``.
    """

    card = HandlerCard(
        "a dict of tensors, named as the model's arguments",
        "its row of the model's answer, on the CPU",
        _WEIGHTS,
        _THREADS,
        "pytorch",
    )

    _default_inference_fn = staticmethod(default_keyed_tensor_inference_fn)

    def get_num_bytes(self, batch: Sequence[dict[str, torch.Tensor]]) -> int:
        """Bytes of the tensors' elements."""
        return sum(_num_bytes(tensor) for example in batch for tensor in example.values())

    def example_from_row(self, row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """A row's columns as tensors of 32-bit floats: a number without dimensions, a list as a 1-D tensor.

        A list of whole numbers, such as token ids or a mask, becomes a tensor of 64-bit integers.

        Raises:
            ValueError: a value is no finite 32-bit number; names the column and the value.
        """
        return {column: _column_tensor(column, value) for column, value in row.items()}


def _as_path(given: str | os.PathLike[str] | None) -> str | None:
    return os.fspath(given) if given else None


def _names(batch: Sequence[dict[str, torch.Tensor]]) -> Iterable[str]:
    """The names that all examples have in common, if they have no others."""
    names = batch[0].keys()
    for example in batch:
        if example.keys() != names:
            raise ValueError(f"the examples of a batch must have the same names: {sorted(names)}, {sorted(example)}.")
    return names


def _stacked(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.stack(list(tensors)).to(device)


def _answer(
    rows: torch.Tensor, model: torch.nn.Module, inference_args: dict[str, Any] | None, model_fn: str = "__call__"
) -> Any:
    with torch.no_grad():
        return single_output(getattr(model, model_fn)(rows, **(inference_args or {})))


def _on_cpu(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {name: _on_cpu(output) for name, output in answer.items()}
    return answer.cpu() if isinstance(answer, torch.Tensor) else answer


def _rows(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: a view of one row, pickled, takes the whole batch along."""
    if isinstance(answer, torch.Tensor):
        return [row.clone() for row in answer.cpu()]
    if isinstance(answer, Mapping):
        return {name: _rows(output) for name, output in answer.items()}
    return answer


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _column_tensor(column: str, value: Any) -> torch.Tensor:
    value = value.tolist() if hasattr(value, "tolist") else value
    numbers = column_numbers(column, value, FLOAT32_MAX)
    if not isinstance(value, list | tuple):
        return torch.tensor(numbers[0], dtype=torch.float32)
    whole = all(isinstance(item, int) for item in value)
    return torch.tensor(value if whole else numbers, dtype=torch.int64 if whole else torch.float32)


def _cuda_is_usable() -> bool:
    """Whether a tensor can be put there; CUDA may say that it is available where a driver is missing."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.empty(1, device="cuda")
    except Exception:
        _LOGGER.debug("CUDA says that it is available, but cannot be used.", exc_info=True)
        return False
    return True
