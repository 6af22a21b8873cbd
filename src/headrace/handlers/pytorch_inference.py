"""Runs PyTorch models on tensors or on dicts of tensors; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace.core.conversion import predict_stacked, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.base import NoModelError, TakesColumns
from headrace.handlers.torch_models import (
    KeyedTensorExamples,
    TensorExamples,
    column_dtypes,
    device_named,
    device_of,
    load_onto,
    outputs_of,
    owned,
    rows,
)

with extra_required("pytorch"):
    import torch
    from torch.utils._pytree import tree_unflatten

__all__ = [
    "PytorchModelHandlerKeyedTensor",
    "PytorchModelHandlerTensor",
    "default_keyed_tensor_inference_fn",
    "default_tensor_inference_fn",
    "make_keyed_tensor_model_fn",
    "make_tensor_model_fn",
]


TensorT = TypeVar("TensorT")

InferenceFn = Callable[
    [Sequence[TensorT], torch.nn.Module, torch.device, "dict[str, Any] | None", "str | None"],
    Iterable[PredictionResult],
]
TensorInferenceFn = InferenceFn[torch.Tensor]
KeyedTensorInferenceFn = InferenceFn[dict[str, torch.Tensor]]


class _PytorchModelHandler(TakesColumns[TensorT, torch.nn.Module]):
    _metrics_namespace = "BeamML_PyTorch"
    _inference_fn: InferenceFn[TensorT]

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
        dtypes: Mapping[str, torch.dtype | str] | None = None,
        **options: Any,
    ) -> None:
        self._torch_script_model_path = os.fspath(torch_script_model_path) if torch_script_model_path else None
        self._state_dict_path = os.fspath(state_dict_path) if state_dict_path else None
        super().__init__(self._model_uri, inference_fn, **options)
        self._model_class = model_class
        self._model_params = model_params or {}
        self._device = device_named(device)
        self._load_model_args = load_model_args or {}
        self._dtypes: Mapping[str, torch.dtype] = column_dtypes(dtypes)
        if dtypes and isinstance(self, PytorchModelHandlerTensor):
            raise ConfigurationError("dtypes goes with PytorchModelHandlerKeyedTensor.")
        self._check_model_arguments()

    @property
    def _model_uri(self) -> str:
        return self._torch_script_model_path or self._state_dict_path or ""

    @_model_uri.setter
    def _model_uri(self, uri: str) -> None:
        if self._torch_script_model_path:
            self._torch_script_model_path = uri
        else:
            self._state_dict_path = uri or None

    def load_model(self) -> torch.nn.Module:
        """Loads the model in evaluation mode onto its device, or else the CPU, with a warning in the log."""
        return load_onto(self._device, self._load, {})

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        device = device_of(model, self._device)
        return self._inference_fn(batch, model, device, inference_args or {}, self._model_uri or None)

    def _answer(self, rows: Any, model: torch.nn.Module, inference_args: dict[str, Any] | None) -> Any:
        if not self.columns_equal_rows():
            return super()._answer(rows, model, inference_args)
        options = getattr(self._inference_fn, "keywords", {})
        return owned(outputs_of(rows, model, device_of(model, self._device), inference_args, **options))

    def _check_model_arguments(self) -> None:
        model_class, script, path = self._model_class, self._torch_script_model_path, self._state_dict_path
        loads_itself = type(self).load_model is not _PytorchModelHandler.load_model  # and needs none of them
        complaint = ""
        if path and not model_class:
            complaint = "state_dict_path needs model_class: what makes the model with this state"
        elif model_class and not path:
            complaint = "model_class needs state_dict_path: the file with the model's state"
        elif script and path:
            complaint = "torch_script_model_path and state_dict_path exclude each other"
        elif not (path or script or loads_itself):
            complaint = "give state_dict_path and model_class, or torch_script_model_path"
        if complaint:
            raise NoModelError(f"{type(self).__qualname__}: {complaint}.")

    def _load(self, device: torch.device) -> torch.nn.Module:
        with open_uri(self._model_uri) as file:
            if not self._torch_script_model_path:
                assert self._model_class
                model = self._model_class(**self._model_params)
                model.load_state_dict(torch.load(file, map_location=device, **self._load_model_args))
                model.requires_grad_(requires_grad=False)
            elif self._model_uri.endswith(".pt2"):
                return _exported(file, device, self._load_model_args)
            else:
                model = torch.jit.load(file, map_location=device, **self._load_model_args)
        return model.to(device).eval()


def _exported(file: Any, device: torch.device, arguments: dict[str, Any]) -> torch.nn.Module:
    """The module of a program that ``torch.export`` saved, which has no training mode to leave."""
    program = torch.export.load(io.BytesIO(file.read()), **arguments)
    if device.type != "cpu":
        program = importlib.import_module("torch.export.passes").move_to_device_pass(program, device)
    by_place, _ = tree_unflatten(list(program.graph_signature.user_inputs), program.call_spec.in_spec)
    return _NamedInputs(program.module(), by_place).requires_grad_(requires_grad=False)


class _NamedInputs(torch.nn.Module):
    """Takes all inputs by name as well, which a program does only with those that were named when it was exported."""

    def __init__(self, module: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self._module, self._names = module, names

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Calls the program."""
        return self._module(*inputs, *(named.pop(name) for name in self._names[len(inputs) :]), **named)


def default_tensor_inference_fn(
    batch: Sequence[Any],
    model: torch.nn.Module,
    device: torch.device,
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
    *,
    model_fn: str = "__call__",
) -> Iterable[PredictionResult]:
    """Calls the model, or its method ``model_fn``, on the stacked batch, and moves tensors of its answer to the CPU.

    Of examples that are dicts, each name's stacked tensors are the keyword argument of that name. Examples of different
    dtypes or shapes run in groups of equal ones.
    """
    ask = partial(outputs_of, model=model, device=device, inference_args=inference_args, model_fn=model_fn)
    return to_results(batch, predict_stacked(batch, torch.stack, ask, lambda answer, _: rows(answer)), model_id)


def make_tensor_model_fn(model_fn: str) -> InferenceFn[Any]:
    """An ``inference_fn`` that calls the model's method ``model_fn``, for example ``"generate"``, on the batch."""
    return partial(default_tensor_inference_fn, model_fn=model_fn)


default_keyed_tensor_inference_fn = default_tensor_inference_fn
make_keyed_tensor_model_fn = make_tensor_model_fn
"""Beam's names for dicts of tensors."""


class PytorchModelHandlerTensor(TensorExamples, _PytorchModelHandler[torch.Tensor]):
    """Predicts for tensors: an example has the shape of the model's input without the batch dimension.

    Args:
        state_dict_path: path or URI of the model's saved ``state_dict()``; needs ``model_class``.
        model_class: the class of the model, or a function that makes the model.
        model_params: keyword arguments for ``model_class``.
        device: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``; if it cannot be used, the CPU,
            with a warning in the log.
        inference_fn: ``(batch, model, device, inference_args, model_id)`` returns a PredictionResult for each example;
            by default ``default_tensor_inference_fn``.
        torch_script_model_path: path or URI of a TorchScript model or, with the ending ``.pt2``, of a program that
            ``torch.export`` saved; replaces ``state_dict_path`` and ``model_class``.
        load_model_args: keyword arguments for ``torch.load``, ``torch.jit.load`` or ``torch.export.load``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the device is unknown; or the arguments name no model, half of one, or two (then it is also
            a RuntimeError).
    """

    _default_inference_fn = staticmethod(default_tensor_inference_fn)


class PytorchModelHandlerKeyedTensor(KeyedTensorExamples, _PytorchModelHandler[dict[str, torch.Tensor]]):
    """Predicts for dicts of tensors named as the model's arguments.

    Args and errors are those of ``PytorchModelHandlerTensor``, with batches of dicts; the default ``inference_fn`` is
    ``default_keyed_tensor_inference_fn``.

    Args:
        dtypes: the dtype of columns of a file whose name does not imply it, such as ``{"words": "int64"}``. By default
            columns named like token ids and masks are 64-bit integers, all others 32-bit floats.
    """

    _default_inference_fn = staticmethod(default_keyed_tensor_inference_fn)
