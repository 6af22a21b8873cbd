"""What the handlers of PyTorch models share: devices, batches made of tensors, and rows made of answers."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from headrace.core.conversion import answer_with_rows, column_integers, column_numbers, single_output
from headrace.core.errors import ConfigurationError, MissingExtraError, PredictionCountError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "pytorch") from error

__all__ = [
    "CPU",
    "DEVICES",
    "answer_to",
    "by_example",
    "call_model",
    "column_dtypes",
    "column_tensor",
    "cuda_is_usable",
    "device_named",
    "device_of",
    "kind_of",
    "load_onto",
    "num_bytes",
    "on_cpu",
    "owned",
    "rows",
    "settled",
    "together",
]

_LOGGER = logging.getLogger(__name__)

CPU = torch.device("cpu")
DEVICES = {"CPU": CPU, "GPU": torch.device("cuda")}

_FLOATS = ("_values", "_features", "_embeds")
"""How arguments of Hugging Face's models end that take floats."""
_OF_DTYPES = re.compile("dtype|scalar type|data type", re.IGNORECASE)

ModelT = TypeVar("ModelT")


def device_named(name: str) -> torch.device:
    """What ``"CPU"`` and ``"GPU"`` stand for.

    Raises:
        ConfigurationError: it is another name.
    """
    if name not in DEVICES:
        raise ConfigurationError(f"device must be 'CPU' or 'GPU', not {name!r}.")
    return DEVICES[name]


def cuda_is_usable() -> bool:
    """Whether a tensor can be put there; CUDA may say that it is available where a driver is missing."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.empty(1, device="cuda")
    except Exception:
        _LOGGER.debug("CUDA says that it is available, but cannot be used.", exc_info=True)
        return False
    return True


def load_onto(device: torch.device, load: Callable[[torch.device], ModelT]) -> ModelT:
    """What ``load`` gives for a device.

    A GPU that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the log.
    """
    if device == CPU:
        return load(CPU)
    if not cuda_is_usable():
        _LOGGER.warning("device='GPU' was asked for, but no GPU can be used here; the model goes to the CPU.")
        return load(CPU)
    try:
        return load(device)
    except RuntimeError as error:
        _LOGGER.warning("The model did not load onto the GPU and goes to the CPU: %s", error)
        return load(CPU)


def device_of(model: Any, asked: torch.device) -> torch.device:
    """Where the model's first weights are, so where its inputs belong.

    Another copy of the handler may have loaded it, onto another device than the one that was ``asked`` for; that one
    counts where there are no weights.
    """
    if isinstance(model, torch.nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    return asked if asked == CPU or cuda_is_usable() else CPU


def call_model(
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    model: Any,
    inference_args: Mapping[str, Any] | None = None,
    model_fn: str = "__call__",
) -> Any:
    """What the model, or its method ``model_fn``, answers to a batch: a tensor, or tensors by the arguments' names.

    Raises:
        PredictionCountError: it answers with a tuple.
        RuntimeError: the inputs are not what it takes.
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
    """What the model answers to examples that are alike; a tensor has a row for each, see ``answer_with_rows``."""

    def ask(alike: Sequence[Any]) -> Any:
        return call_model(together(alike, device), model, inference_args, model_fn)

    return answer_with_rows(ask, examples)


def on_cpu(answer: Any) -> Any:
    """A tensor, or each of a mapping or list, in the CPU's memory.

    Raises:
        PredictionCountError: one of a mapping is a tuple.
    """
    if isinstance(answer, Mapping):
        return {name: on_cpu(single_output(output)) for name, output in answer.items()}
    return answer.cpu() if isinstance(answer, torch.Tensor) else owned(answer)


def rows(answer: Any) -> Any:
    """A tensor's rows, each in memory of its own: a view of one row, pickled, takes the whole batch along.

    A list is taken for one prediction for each example, which detectors make.

    Raises:
        PredictionCountError: one of a mapping's outputs is a tuple.
    """
    if isinstance(answer, torch.Tensor):
        return [row.clone() for row in answer.cpu()] if answer.ndim else answer  # which is refused later
    if isinstance(answer, Mapping):
        return {name: rows(single_output(output)) for name, output in answer.items()}
    return owned(answer)


def owned(value: Any) -> Any:
    """A value of dicts, lists and tensors, whose tensors are on the CPU and in memory of their own."""
    if isinstance(value, torch.Tensor):
        return value.cpu() if value.untyped_storage().nbytes() == num_bytes(value) else value.clone().cpu()
    if type(value) is dict:
        return {name: owned(item) for name, item in value.items()}
    if type(value) is list and value and not isinstance(value[0], float | int | str):  # lists of numbers may be long
        return [owned(item) for item in value]
    return value


def kind_of(example: Any) -> tuple[Any, ...]:
    """What tensors, or dicts of tensors, must have in common to be stacked as they are: names, dtypes and shapes.

    Raises:
        TypeError: the example is made of something else.
    """
    if isinstance(example, torch.Tensor):  # which is asked before as it costs a third of what asking for a mapping does
        return example.shape, example.dtype
    if isinstance(example, Mapping):
        return tuple([(name, *_kind(example[name])) for name in sorted(example)])
    return _kind(example)


def _kind(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"an example must be made of torch tensors, not of {type(tensor).__qualname__}.")
    return tensor.shape, tensor.dtype


def together(examples: Sequence[Any], device: torch.device) -> Any:
    """A batch of examples that are alike: tensors, or dicts of tensors."""
    if isinstance(examples[0], torch.Tensor):
        return torch.stack(list(examples)).to(device)
    return {name: torch.stack([example[name] for example in examples]).to(device) for name in examples[0]}


def by_example(answer: Any, count: int, ignored: Sequence[str] = ()) -> list[Any]:
    """One prediction for each of ``count`` examples, made of a tensor, or of a mapping or tuple of several outputs.

    Outputs that have no row for each example, such as a loss or a cache of the whole batch, are left out of a mapping,
    and so are those with the names in ``ignored``, of which as many rows as examples would be a coincidence.

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
    """One output's part for each example, in memory of its own; None if it has no such parts.

    A tuple holds a tensor for each layer, all with a row for each example, and so does each example's part.
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


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def column_dtypes(given: Mapping[str, Any] | None) -> dict[str, torch.dtype]:
    """The dtypes of columns that a user has named, as torch's own or by their names.

    Raises:
        ConfigurationError: one is none of numbers.
    """
    dtypes: dict[str, torch.dtype] = {}
    for name, asked in (given or {}).items():
        dtype = getattr(torch, str(asked).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or dtype.is_complex:
            raise ConfigurationError(f"dtypes must map columns to dtypes, such as 'int64', not {name!r} to {asked!r}.")
        dtypes[name] = dtype
    return dtypes


def column_tensor(column: str, value: Any, dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
    """A row's column as a tensor: a number without dimensions, a list as a 1-D tensor.

    Its dtype is the column's, whatever this row holds: that of ``dtypes``; else 64-bit integers if it is named as the
    arguments of Hugging Face's models are that take token ids or masks (``input_ids``, ``attention_mask``, ...), and
    else 32-bit floats.

    Raises:
        ValueError: a value is no number that the dtype can hold; names the column and the value.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    dtype = dtypes.get(column) or (torch.int64 if _is_of_ids(column) else torch.float32)
    if dtype.is_floating_point:
        numbers: list[Any] = column_numbers(column, value, min(torch.finfo(dtype).max, sys.float_info.max))
    else:
        numbers = column_integers(column, value, f"; its dtype is {dtype} unless dtypes={{{column!r}: ...}} says other")
    return torch.tensor(numbers if isinstance(value, list | tuple) else numbers[0], dtype=dtype)


def settled(batch: Sequence[Any], model: Any) -> list[torch.Tensor]:
    """Tensors as the model's first argument takes them, so that all examples are of one dtype.

    Token ids become 64-bit integers. Pixels, sounds and embeddings become the model's floats, and so do 64-bit floats
    for an argument of which nobody knows what it takes.

    Raises:
        TypeError: an example is no tensor.
        ValueError: an id is no whole number.
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
    """The dtype of its first argument: by its name; or integers, if its first weights are an embedding's."""
    parameters = [name for name in inspect.signature(getattr(model, "forward", model)).parameters if name != "self"]
    if parameters and parameters[0].endswith(_FLOATS):
        return _float_of(model)
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    first = next((module for module in modules if module._parameters), None)
    has_ids = (parameters and _is_of_ids(parameters[0])) or isinstance(first, torch.nn.Embedding)
    return torch.int64 if has_ids else None


def _float_of(model: Any) -> torch.dtype:
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((one.dtype for one in weights if one.is_floating_point()), torch.float32)


def _is_of_ids(name: str) -> bool:
    return name.endswith(("_ids", "_mask", "_positions")) or name in ("ids", "mask")
