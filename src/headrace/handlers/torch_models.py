"""Shared by the handlers of PyTorch models: where a model goes, and rows, columns and batches as tensors."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from headrace.core.columns import Form, Takes
from headrace.core.conversion import (
    FLOAT32_MAX,
    arrays_in,
    by_name,
    column_integers,
    column_numbers,
    single_output,
)
from headrace.core.errors import ConfigurationError, extra_required

with extra_required("pytorch"):
    import numpy
    import torch

from headrace.handlers.array_batches import InputRows

_LOGGER = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def device_named(name: str | torch.device) -> torch.device:
    """The device of a name, in any case: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``."""
    try:
        return torch.device(re.sub("^gpu(?=:|$)", "cuda", str(name).lower()))
    except RuntimeError:
        raise ConfigurationError(
            f"device must be 'CPU', 'GPU', or a device of PyTorch's such as 'cuda:0', not {name!r}."
        ) from None


def is_usable(device: torch.device) -> bool:
    """Whether the device can compute; CUDA may report itself as available although a driver is missing."""
    if device.type == "cpu":
        return True
    if device.type == "cuda" and not torch.cuda.is_available():
        return False
    try:
        torch.zeros(1, device=device).item()
    except Exception:
        _LOGGER.debug("%s cannot be used.", device, exc_info=True)
        return False
    return True


def load_onto(device: str | torch.device | None, load: Callable[[Any], ModelT], arguments: Mapping[str, Any]) -> ModelT:
    """Loads a model onto a device; if that cannot be done, onto the CPU, with a warning in the log.

    Args:
        device: as ``device_named`` takes it; None: the GPU if it can be used.
        load: the function that loads; None instead of a device: its keyword arguments choose one.
        arguments: these.
    """
    if _chosen(arguments):
        return load(None)
    asked = device_named(device) if device else (CUDA if is_usable(CUDA) else CPU)
    if is_usable(asked):
        try:
            return load(asked)
        except RuntimeError as error:
            if asked.type == "cpu":
                raise
            _LOGGER.warning("The model did not load onto %s and goes to the CPU: %s", asked, error)
    else:
        _LOGGER.warning("The device %s was asked for, but cannot be used here; the model goes to the CPU.", asked)
    return load(CPU)


def _chosen(arguments: Mapping[str, Any]) -> list[str]:
    given = {**(arguments.get("model_kwargs") or {}), **arguments}
    return [place for place in ("device", "device_map") if given.get(place) is not None]


def refuse_two_devices(device: str | torch.device | None, arguments: Mapping[str, Any], name: str) -> None:
    """Raises ConfigurationError for an unknown device, or if a loading function's arguments, called ``name``, have one.

    That may be a ``device`` or ``device_map`` among them, or in ``model_kwargs``.
    """
    if not device:
        return
    device_named(device)
    if chosen := _chosen(arguments):
        raise ConfigurationError(
            f"{name} say where the model goes ({', '.join(chosen)}), so device={device!r} would have no effect; "
            "leave one of them out."
        )


def device_of(model: Any, asked: str | torch.device) -> torch.device:
    """The device of the model's first weights, where its inputs belong; without weights, ``asked``.

    They differ if another copy of the handler loaded the model, and could not use the device ``asked`` for.
    """
    if isinstance(model, torch.nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    device = device_named(asked)
    return device if is_usable(device) else CPU


def from_array(array: Any) -> torch.Tensor:
    """A tensor on the array's memory, or on a copy if that is read-only."""
    return torch.from_numpy(numpy.require(array, requirements="W"))


class TensorExamples(InputRows):
    """For a handler whose examples are tensors; the numbers of a row make one without other dimensions."""

    _of_array = staticmethod(from_array)

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the tensors' elements."""
        return sum(map(num_bytes, arrays_in(batch)))

    def _rows_of(self, columns: Any) -> Any:
        return columns if isinstance(columns, torch.Tensor) else super()._rows_of(columns)


class KeyedTensorExamples(TensorExamples):
    """For a handler whose examples are dicts of tensors.

    The dtype of a column depends on its name, never on a row: that in ``_dtypes``; else 64-bit integers if it is named
    like token ids and masks (``input_ids``, ``attention_mask``, ...); else 32-bit floats.
    """

    _dtypes: Mapping[str, torch.dtype]

    @property
    def takes(self) -> Takes:
        """Numbers by name, each within its dtype."""
        return Takes(Form.ARRAYS, limits=partial(_limits, self._dtypes))

    def example_from_row(self, row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """A row's columns as tensors of the columns' dtypes: a number without dimensions, a list as a 1-D tensor."""
        return {column: _tensor(column, value, _dtype_of(column, self._dtypes)) for column, value in row.items()}

    def _rows_of(self, columns: Any) -> dict[str, torch.Tensor]:
        found = by_name(columns)
        return {name: _tensor_of_rows(name, values, _dtype_of(name, self._dtypes)) for name, values in found.items()}


def column_dtypes(given: Mapping[str, Any] | None) -> dict[str, torch.dtype]:
    """The user's dtypes of columns, given as torch's own or by name; ConfigurationError for one of no real numbers."""
    dtypes: dict[str, torch.dtype] = {}
    for name, asked in (given or {}).items():
        dtype = getattr(torch, str(asked).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or dtype.is_complex:
            raise ConfigurationError(f"dtypes must map columns to dtypes, such as 'int64', not {name!r} to {asked!r}.")
        dtypes[name] = dtype
    return dtypes


def _dtype_of(column: str, dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    return dtypes.get(column) or (torch.int64 if is_of_ids(column) else torch.float32)


def is_of_ids(name: str) -> bool:
    """Whether a name is one of token ids, or of what goes with them."""
    return name.endswith(("_ids", "_mask", "_positions")) or name in ("ids", "mask")


def _limits(dtypes: Mapping[str, torch.dtype], column: str) -> tuple[float, float]:
    """The least and the largest number of a column of many rows; integers where it takes whole numbers only."""
    dtype = _dtype_of(column, dtypes)
    if dtype.is_floating_point:
        largest = min(torch.finfo(dtype).max, FLOAT32_MAX)
        return -largest, largest
    info = torch.iinfo(torch.int64 if dtype == torch.bool else dtype)
    return info.min, info.max


def _tensor(column: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    value = value.tolist() if hasattr(value, "tolist") else value
    if dtype.is_floating_point:
        numbers: list[Any] = column_numbers(column, value, min(torch.finfo(dtype).max, sys.float_info.max))
    else:
        numbers = column_integers(column, value, f"; its dtype is {dtype} unless dtypes={{{column!r}: ...}} says other")
    return torch.tensor(numbers if isinstance(value, list | tuple) else numbers[0], dtype=dtype)


def _tensor_of_rows(column: str, values: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values
    numbers = numpy.asarray(values)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"column {column!r} is of {numbers.dtype}, which holds no numbers.")
    if dtype.is_floating_point:  # round as rows do: Python floats first
        numbers = numbers.astype("float64", copy=False)
    return from_array(numbers).to(dtype)


def call_model(
    inputs: Any,
    model: Any,
    device: torch.device,
    inference_args: Mapping[str, Any] | None = None,
    model_fn: str = "__call__",
) -> Any:
    """Calls the model, or its method ``model_fn``, on a batch on a device: a tensor, or tensors by argument name."""
    positional: list[Any] = [inputs.to(device)] if isinstance(inputs, torch.Tensor) else []
    named = {} if positional else {name: tensor.to(device) for name, tensor in inputs.items()}
    with torch.no_grad():
        return single_output(getattr(model, model_fn)(*positional, **named, **(inference_args or {})))


def outputs_of(inputs: Any, model: Any, device: torch.device, *arguments: Any, **options: Any) -> Any:
    """As ``call_model``; each output of several by name must be a single one, too."""
    answer = call_model(inputs, model, device, *arguments, **options)
    return {name: single_output(one) for name, one in answer.items()} if isinstance(answer, Mapping) else answer


def rows(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: the pickle of a view would contain the whole batch.

    A list counts as one prediction for each example, as detectors return it.
    """
    if isinstance(answer, torch.Tensor):
        return [row.clone() for row in answer.cpu()] if answer.ndim else answer  # which is refused later
    return {name: rows(output) for name, output in answer.items()} if isinstance(answer, dict) else owned(answer)


def owned(value: Any) -> Any:
    """A copy of dicts, lists and tensors with each tensor on the CPU and in memory of its own."""
    if isinstance(value, torch.Tensor):
        return value.cpu() if value.untyped_storage().nbytes() == num_bytes(value) else value.clone().cpu()
    if type(value) is dict:
        return {name: owned(item) for name, item in value.items()}
    if type(value) is list and value and not isinstance(value[0], float | int | str):  # lists of numbers may be long
        return [owned(item) for item in value]
    return value


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
