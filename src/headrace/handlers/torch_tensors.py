"""What the handlers of PyTorch models share: devices, batches made of tensors, and rows made of answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from headrace.core.conversion import FLOAT32_MAX, column_numbers, single_output
from headrace.core.errors import ConfigurationError, MissingExtraError, PredictionCountError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "pytorch") from error

__all__ = [
    "CPU",
    "DEVICES",
    "alike",
    "by_example",
    "call_model",
    "column_tensor",
    "common_names",
    "cuda_is_usable",
    "device_named",
    "device_of",
    "load_onto",
    "num_bytes",
    "on_cpu",
    "owned",
    "rows",
    "stacked",
    "together",
]

_LOGGER = logging.getLogger(__name__)

CPU = torch.device("cpu")
DEVICES = {"CPU": CPU, "GPU": torch.device("cuda")}

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


def stacked(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """A batch of tensors of equal shapes."""
    return torch.stack(list(tensors)).to(device)


def common_names(batch: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """The names that all examples have in common.

    Raises:
        ValueError: one has others.
    """
    names = batch[0].keys()
    for example in batch:
        if example.keys() != names:
            raise ValueError(f"the examples of a batch must have the same names: {sorted(names)}, {sorted(example)}.")
    return names


def call_model(
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    model: Any,
    inference_args: Mapping[str, Any] | None = None,
    model_fn: str = "__call__",
) -> Any:
    """What the model, or its method ``model_fn``, answers to a batch: a tensor, or tensors by the arguments' names.

    Raises:
        PredictionCountError: it answers with a tuple.
    """
    positional, named = ([inputs], {}) if isinstance(inputs, torch.Tensor) else ([], inputs)
    with torch.no_grad():
        return single_output(getattr(model, model_fn)(*positional, **named, **(inference_args or {})))


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
        return [row.clone() for row in answer.cpu()]
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


def alike(batch: Sequence[Any]) -> Iterable[list[int]]:
    """The places of the examples, tensors or dicts of tensors, that can be stacked: of equal shapes, and names.

    Raises:
        TypeError: an example is made of something else.
    """
    groups: dict[Any, list[int]] = {}
    for index, example in enumerate(batch):
        keyed = isinstance(example, Mapping)
        shapes = [(name, _shape(example[name])) for name in sorted(example)] if keyed else [_shape(example)]
        groups.setdefault((keyed, *shapes), []).append(index)
    return groups.values()


def _shape(tensor: Any) -> tuple[int, ...]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"an example must be made of torch tensors, not of {type(tensor).__qualname__}.")
    return tuple(tensor.shape)


def together(examples: Sequence[Any], device: torch.device) -> Any:
    """A batch of examples that are alike: tensors, or dicts of tensors."""
    if isinstance(examples[0], torch.Tensor):
        return stacked(examples, device)
    return {name: stacked([example[name] for example in examples], device) for name in examples[0]}


def by_example(answer: Any, count: int) -> list[Any]:
    """One prediction for each of ``count`` examples, made of a tensor, or of a mapping or tuple of several outputs.

    Outputs that have no row for each example, such as a loss or a cache of the whole batch, are left out of a mapping.

    Raises:
        PredictionCountError: no output has a row for each example.
    """
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


def column_tensor(column: str, value: Any) -> torch.Tensor:
    """A row's column as a tensor of 32-bit floats: a number without dimensions, a list as a 1-D tensor.

    A list of whole numbers, such as token ids or a mask, becomes a tensor of 64-bit integers.

    Raises:
        ValueError: a value is no finite 32-bit number; names the column and the value.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    numbers = column_numbers(column, value, FLOAT32_MAX)
    if not isinstance(value, list | tuple):
        return torch.tensor(numbers[0], dtype=torch.float32)
    whole = all(isinstance(item, int) for item in value)
    return torch.tensor(value if whole else numbers, dtype=torch.int64 if whole else torch.float32)
