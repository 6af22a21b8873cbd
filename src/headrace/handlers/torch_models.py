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

_LOGGER = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
_OF_DTYPES = re.compile("dtype|scalar type|data type", re.IGNORECASE)


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


def load_onto(device: str | torch.device, load: Callable[[torch.device], ModelT]) -> ModelT:
    """Returns ``load(device)``; if that cannot be done, ``load(CPU)``, with a warning in the log."""
    device = device_named(device)
    if is_usable(device):
        try:
            return load(device)
        except RuntimeError as error:
            if device.type == "cpu":
                raise
            _LOGGER.warning("The model did not load onto %s and goes to the CPU: %s", device, error)
    else:
        _LOGGER.warning("The device %s was asked for, but cannot be used here; the model goes to the CPU.", device)
    return load(CPU)


def device_of(model: Any, asked: str | torch.device) -> torch.device:
    """The device of the model's first weights, where its inputs belong; without weights, ``asked``.

    They differ if another copy of the handler loaded the model, and could not use the device ``asked`` for.
    """
    if isinstance(model, torch.nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    device = device_named(asked)
    return device if is_usable(device) else CPU


class AutoPlacement:
    """The device of a model whose loading function may choose one itself.

    Args:
        device: as ``device_named`` takes it; None: the GPU if it can be used.
        arguments: keyword arguments of the loading function, perhaps with ``model_kwargs``; a ``device`` or
            ``device_map`` in either chooses the device.
        name: of the handler's argument that holds them.

    Raises:
        ConfigurationError: the device is unknown, or is given twice.
    """

    def __init__(self, device: str | torch.device | None, arguments: Mapping[str, Any], name: str) -> None:
        self._device = device_named(device) if device else None
        chosen = _chosen(arguments)
        if device and chosen:
            raise ConfigurationError(
                f"{name} say where the model goes ({', '.join(chosen)}), so device={device!r} would have no effect; "
                "leave one of them out."
            )

    def load(self, load: Callable[..., ModelT], arguments: Mapping[str, Any]) -> ModelT:
        """Loads a model: ``load(device=...)``, or ``load()`` if its arguments choose the device; as ``load_onto``."""
        if _chosen(arguments):
            return load()
        device = self._device or (CUDA if is_usable(CUDA) else CPU)
        return load_onto(device, lambda device: load(device=device))


def _chosen(arguments: Mapping[str, Any]) -> list[str]:
    given = {**(arguments.get("model_kwargs") or {}), **arguments}
    return [place for place in ("device", "device_map") if given.get(place) is not None]


class TensorExamples:
    """For a handler whose examples are tensors, or dicts of tensors."""

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the tensors' elements."""
        return sum(map(num_bytes, arrays_in(batch)))


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

    def _inputs_of(self, columns: Any) -> dict[str, torch.Tensor]:
        """Columns of many rows (arrays or tensors by name, an Arrow table or record batch, a frame) as tensors."""
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
    return torch.from_numpy(numpy.require(numbers, requirements="W")).to(dtype)


def call_model(
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    model: Any,
    inference_args: Mapping[str, Any] | None = None,
    model_fn: str = "__call__",
) -> Any:
    """Calls the model, or its method ``model_fn``, on a batch: a tensor, or tensors by argument name."""
    positional: list[Any] = [inputs] if isinstance(inputs, torch.Tensor) else []
    named: Mapping[str, Any] = {} if isinstance(inputs, torch.Tensor) else inputs
    try:
        with torch.no_grad():
            return single_output(getattr(model, model_fn)(*positional, **named, **(inference_args or {})))
    except RuntimeError as error:
        if not _OF_DTYPES.search(str(error)):
            raise
        dtypes = {name: tensor.dtype for name, tensor in (named or {"the example": inputs}).items()}
        raise RuntimeError(
            f"{error}\nThe model was given {dtypes}. Convert tensors before; columns of a file are 32-bit floats, but "
            "for those named as token ids and masks are, and those of the argument dtypes, {'column': 'int64'}."
        ) from error


def on_device(inputs: Any, device: torch.device) -> Any:
    """Moves a tensor, or tensors by name, to a device."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def on_cpu(answer: Any) -> Any:
    """Moves a tensor, or those in a mapping or list, to the CPU; refuses a tuple in a mapping."""
    if isinstance(answer, Mapping):
        return {name: on_cpu(single_output(output)) for name, output in answer.items()}
    return answer.cpu() if isinstance(answer, torch.Tensor) else owned(answer)


def rows(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: the pickle of a view would contain the whole batch.

    A list counts as one prediction for each example, as detectors return it.
    """
    if isinstance(answer, torch.Tensor):
        return [row.clone() for row in answer.cpu()] if answer.ndim else answer  # which is refused later
    if isinstance(answer, Mapping):
        return {name: rows(single_output(output)) for name, output in answer.items()}
    return owned(answer)


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
