"""Shared by the handlers of PyTorch models: rows and columns into tensors, these into batches, answers into rows."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.conversion import (
    FLOAT32_MAX,
    answer_with_rows,
    by_name,
    column_integers,
    column_numbers,
    single_output,
)
from headrace.core.errors import ConfigurationError, PredictionCountError, extra_required

with extra_required("pytorch"):
    import numpy
    import torch

__all__ = [
    "KeyedTensorExamples",
    "TensorExamples",
    "answer_to",
    "by_example",
    "call_model",
    "column_dtypes",
    "column_limits",
    "column_tensors",
    "kind_of",
    "most_numbers",
    "num_bytes",
    "on_cpu",
    "on_device",
    "owned",
    "rows",
    "settled",
]

_FLOATS = ("_values", "_features", "_embeds")
"""Suffixes of the names of arguments that take floats in Hugging Face's models."""
_OF_DTYPES = re.compile("dtype|scalar type|data type", re.IGNORECASE)


class TensorExamples:
    """For a handler whose examples are tensors."""

    def get_num_bytes(self, batch: Sequence[torch.Tensor]) -> int:
        """Bytes of the tensors' elements."""
        return sum(map(num_bytes, batch))


class KeyedTensorExamples:
    """For a handler whose examples are dicts of tensors."""

    _dtypes: Mapping[str, torch.dtype]
    """Dtypes of columns whose name does not imply them."""

    def get_num_bytes(self, batch: Sequence[dict[str, torch.Tensor]]) -> int:
        """Bytes of the tensors' elements."""
        return sum(num_bytes(one) for example in batch for one in example.values())

    def example_from_row(self, row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """A row's columns as tensors: a number without dimensions, a list as a 1-D tensor.

        The dtype depends on the column, never on the row: that in ``dtypes``; else 64-bit integers if the column is
        named like token ids and masks (``input_ids``, ``attention_mask``, ...); else 32-bit floats.

        Raises:
            ValueError: the column's dtype cannot hold a value; names the column and the value.
        """
        return {column: _column_tensor(column, value, self._dtypes) for column, value in row.items()}


def column_dtypes(given: Mapping[str, Any] | None) -> dict[str, torch.dtype]:
    """The user's dtypes of columns, given as torch's own or by name.

    Raises:
        ConfigurationError: one is not a dtype of real numbers.
    """
    dtypes: dict[str, torch.dtype] = {}
    for name, asked in (given or {}).items():
        dtype = getattr(torch, str(asked).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or dtype.is_complex:
            raise ConfigurationError(f"dtypes must map columns to dtypes, such as 'int64', not {name!r} to {asked!r}.")
        dtypes[name] = dtype
    return dtypes


def _column_tensor(column: str, value: Any, dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
    value = value.tolist() if hasattr(value, "tolist") else value
    dtype = _dtype_of(column, dtypes)
    if dtype.is_floating_point:
        numbers: list[Any] = column_numbers(column, value, min(torch.finfo(dtype).max, sys.float_info.max))
    else:
        numbers = column_integers(column, value, f"; its dtype is {dtype} unless dtypes={{{column!r}: ...}} says other")
    return torch.tensor(numbers if isinstance(value, list | tuple) else numbers[0], dtype=dtype)


def column_limits(dtypes: Mapping[str, torch.dtype], column: str) -> tuple[float, float]:
    """The least and the largest number of a column of many rows; integers where it takes whole numbers only."""
    dtype = _dtype_of(column, dtypes)
    if dtype.is_floating_point:
        largest = min(torch.finfo(dtype).max, FLOAT32_MAX)
        return -largest, largest
    info = torch.iinfo(torch.int64 if dtype == torch.bool else dtype)
    return info.min, info.max


def column_tensors(columns: Any, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Columns of many rows as tensors by name: arrays or tensors, an Arrow table or record batch, or a data frame."""
    return {name: _column_of_rows(name, values, dtypes) for name, values in by_name(columns).items()}


def _column_of_rows(column: str, values: Any, dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values
    dtype = _dtype_of(column, dtypes)
    numbers = numpy.asarray(values)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"column {column!r} is of {numbers.dtype}, which holds no numbers.")
    if dtype.is_floating_point:  # round as rows do: Python floats first
        numbers = numbers.astype("float64", copy=False)
    return torch.from_numpy(numpy.require(numbers, requirements="W")).to(dtype)


def _dtype_of(column: str, dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    return dtypes.get(column) or (torch.int64 if is_of_ids(column) else torch.float32)


def is_of_ids(name: str) -> bool:
    """Whether a name is one of token ids, or of what goes with them."""
    return name.endswith(("_ids", "_mask", "_positions")) or name in ("ids", "mask")


def call_model(
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    model: Any,
    inference_args: Mapping[str, Any] | None = None,
    model_fn: str = "__call__",
) -> Any:
    """Calls the model, or its method ``model_fn``, on a batch: a tensor, or tensors by argument name.

    Raises:
        PredictionCountError: the model returns a tuple.
        RuntimeError: it does not take these inputs.
    """
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


def answer_to(
    examples: Sequence[Any],
    device: torch.device,
    model: Any,
    inference_args: Mapping[str, Any] | None = None,
    model_fn: str = "__call__",
) -> Any:
    """The model's answer for examples that can be stacked; a tensor has a row for each of them."""

    def ask(alike: Sequence[Any]) -> Any:
        return call_model(_together(alike, device), model, inference_args, model_fn)

    return answer_with_rows(ask, examples)


def on_device(inputs: Any, device: torch.device) -> Any:
    """Moves a tensor, or tensors by name, to a device."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def on_cpu(answer: Any) -> Any:
    """Moves a tensor, or those in a mapping or list, to the CPU.

    Raises:
        PredictionCountError: a value of a mapping is a tuple.
    """
    if isinstance(answer, Mapping):
        return {name: on_cpu(single_output(output)) for name, output in answer.items()}
    return answer.cpu() if isinstance(answer, torch.Tensor) else owned(answer)


def rows(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: the pickle of a view would contain the whole batch.

    A list counts as one prediction for each example, as detectors return it.

    Raises:
        PredictionCountError: an output in a mapping is a tuple.
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


def kind_of(example: Any) -> tuple[Any, ...]:
    """What tensors, or dicts of tensors, must share to be stacked unchanged: names, dtypes and shapes.

    Raises:
        TypeError: the example contains something else.
    """
    if isinstance(example, torch.Tensor):  # first: a third of the cost of the test for a mapping
        return example.shape, example.dtype
    if isinstance(example, Mapping):
        return tuple([(name, *_kind(example[name])) for name in sorted(example)])
    return _kind(example)


def _kind(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"an example must be made of torch tensors, not of {type(tensor).__qualname__}.")
    return tensor.shape, tensor.dtype


def _together(examples: Sequence[Any], device: torch.device) -> Any:
    """Stacks examples of one kind: tensors, or dicts of tensors."""
    if isinstance(examples[0], torch.Tensor):
        return torch.stack(list(examples)).to(device)
    return {name: torch.stack([example[name] for example in examples]).to(device) for name in examples[0]}


def by_example(answer: Any, count: int, ignored: Sequence[str] = ()) -> list[Any]:
    """Splits an answer (a tensor, or a mapping or tuple of outputs) into one prediction for each of ``count`` examples.

    A mapping loses the outputs that have no row for each example, such as a loss or a cache of the whole batch, and
    those named in ``ignored``, which may have as many rows as there are examples only by coincidence.

    Raises:
        PredictionCountError: no output has a row for each example.
    """
    if isinstance(answer, Mapping):
        answer = {name: output for name, output in answer.items() if name not in ignored}
    predictions = _parts(answer, count)
    if predictions is None:
        raise PredictionCountError(
            f"the model's answer, of type {type(answer).__qualname__}, has no row for each of {count} examples; give "
            "the handler an inference_fn that makes one prediction for each."
        )
    return predictions


def _parts(output: Any, count: int) -> list[Any] | None:
    """Each example's part of an output, in memory of its own; None if the output has no such parts.

    A tuple holds a tensor for each layer, and so does each example's part.
    """
    if isinstance(output, torch.Tensor):
        return rows(output) if output.ndim and len(output) == count else None
    if isinstance(output, tuple):
        layers = [_parts(layer, count) for layer in output]
        return list(zip(*layers, strict=True)) if layers and None not in layers else None
    if isinstance(output, Mapping):
        columns = {name: parts for name, parts in ((n, _parts(o, count)) for n, o in output.items()) if parts}
        return [{name: parts[index] for name, parts in columns.items()} for index in range(count)] if columns else None
    return None


def most_numbers(example: Any) -> int:
    """The number of elements of a tensor, or of the largest one in a dict or tuple; 1 of anything else."""
    if isinstance(example, torch.Tensor):
        return max(1, example.numel())
    if isinstance(example, Mapping):
        example = tuple(example.values())
    return max(map(most_numbers, example), default=1) if isinstance(example, tuple) else 1


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def settled(batch: Sequence[Any], model: Any) -> list[torch.Tensor]:
    """Converts tensors to the dtype that the model's first argument takes.

    Token ids become 64-bit integers. Pixels, sounds and embeddings get the model's float dtype, and so do 64-bit floats
    if it is unknown what the argument takes.

    Raises:
        TypeError: an example is not a tensor.
        ValueError: an id is not a whole number.
    """
    wanted, unknown = _wanted(model), {torch.float64: _float_of(model)}
    return [_converted(example, wanted or unknown.get(_kind(example)[1])) for example in batch]


def _converted(example: torch.Tensor, wanted: torch.dtype | None) -> torch.Tensor:
    if wanted in (None, _kind(example)[1]):
        return example
    if wanted.is_floating_point:
        return example.to(wanted)
    converted = example.to(wanted)
    if example.is_floating_point() and not torch.equal(converted.to(example.dtype), example):
        raise ValueError(f"the model takes whole numbers, such as token ids, and an example holds {example.tolist()}.")
    return converted


def _wanted(model: Any) -> torch.dtype | None:
    """The dtype of the first argument: by its name, or integers if the first weights are an embedding's."""
    parameters = [name for name in inspect.signature(getattr(model, "forward", model)).parameters if name != "self"]
    if parameters and parameters[0].endswith(_FLOATS):
        return _float_of(model)
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    first = next((module for module in modules if module._parameters), None)
    has_ids = (parameters and is_of_ids(parameters[0])) or isinstance(first, torch.nn.Embedding)
    return torch.int64 if has_ids else None


def _float_of(model: Any) -> torch.dtype:
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((one.dtype for one in weights if one.is_floating_point()), torch.float32)
