"""How PyTorch's tensors travel between processes: the plug-in that ``headrace.arrays`` finds for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq
from pickle import PickleBuffer
from typing import Any

from headrace.core.arrays import Stacked
from headrace.core.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "pytorch") from error

__all__ = ["TorchArrays"]

_COMMON = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
"""Dtypes that every operation knows."""
_RARE = (
    *("uint16", "uint32", "uint64", "complex32"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
"""Dtypes that many operations refuse; not every version of torch has them."""

_NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in (*_COMMON, *_RARE) if hasattr(torch, name)}
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes: the dtype as which a rare one is moved."""

_TRAITS = attrgetter("shape", "dtype", "layout", "device", "requires_grad")


class TorchArrays:
    """Stacks contiguous tensors of one dtype and shape that lie in the CPU's memory and need no gradient."""

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """Those tensors as one piece; None where they differ, or are of a subclass or in any way unusual."""
        first = values[0]
        if set(map(type, values)) != {torch.Tensor} or _is_unusual(first):
            return None
        if not first.is_cpu or first.requires_grad or not _agree(values):
            return None
        shape, rare = tuple(first.shape), _NAMES[first.dtype] in _RARE
        dtype = _SAME_SIZE[first.itemsize] if rare else first.dtype

        def write(memory: memoryview) -> None:
            if len(memory):
                block = torch.frombuffer(memory, dtype=dtype).view(len(values), *shape)
                torch.stack([value.resolve_conj().view(dtype) if rare else value for value in values], out=block)

        return Stacked((_NAMES[first.dtype], shape), first.nbytes * len(values), write)

    def unstack(self, layout: Any, memory: memoryview, count: int) -> list[Any]:
        """Tensors on ``memory``, or on a copy of it where it is read-only: a tensor cannot be.

        Each has a storage of its own, so that one of them, pickled, does not take all along.
        """
        name, shape = layout
        dtype = getattr(torch, name)
        if not len(memory):
            return [_empty(dtype, shape) for _ in range(count)]
        memory, size = _writable(memory), len(memory) // count
        length = size // dtype.itemsize
        rows = [torch.frombuffer(memory, dtype=dtype, count=length, offset=at) for at in range(0, len(memory), size)]
        return rows if len(shape) == 1 else [row.view(shape) for row in rows]

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """A tensor on another device arrives in the CPU's memory; ``requires_grad`` is kept, its history is not."""
        return {torch.Tensor: _reduce}


def _is_unusual(tensor: torch.Tensor) -> bool:
    """Whether a tensor is more than numbers in memory; with such ones torch itself shall deal."""
    return bool(
        tensor.is_nested
        or tensor.layout is not torch.strided
        or tensor.dtype not in _NAMES
        or tensor.is_meta
        or tensor._backward_hooks
        or vars(tensor)
    )


def _agree(values: Sequence[torch.Tensor]) -> bool:
    """Whether all are like the first, and all are contiguous and without attributes of their own."""
    try:
        alike = all(map(eq, map(_TRAITS, values), repeat(_TRAITS(values[0]))))
    except RuntimeError:  # a nested tensor has no shape
        return False
    return alike and all(map(torch.Tensor.is_contiguous, values)) and not any(map(vars, values))


def _reduce(tensor: torch.Tensor) -> Any:
    if _is_unusual(tensor):
        return tensor.__reduce_ex__(5)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # a single element may have any stride
    data: Any = flat.view(torch.uint8).numpy()
    return _rebuilt, (PickleBuffer(data), _NAMES[tensor.dtype], tuple(tensor.shape), tensor.requires_grad)


def _rebuilt(data: Any, name: str, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    memory, dtype = _writable(memoryview(data)), getattr(torch, name)
    tensor = torch.frombuffer(memory, dtype=dtype).view(shape) if len(memory) else _empty(dtype, shape)
    return tensor.requires_grad_(requires_grad)


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor without elements, without ``torch.empty``'s warnings of rare dtypes."""
    return torch.frombuffer(bytearray(dtype.itemsize), dtype=dtype)[:0].view(shape)


def _writable(memory: memoryview) -> memoryview:
    return memoryview(bytearray(memory)) if memory.readonly else memory
