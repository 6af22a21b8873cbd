"""The plug-in for PyTorch in ``headrace.arrays``: how tensors travel between processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, eq
from pickle import PickleBuffer
from typing import Any

from headrace.core.arrays import ArrayCodec, NotMappableError, Span, Stacked
from headrace.core.errors import extra_required

with extra_required("pytorch"):
    import torch

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
"""Dtypes that many operations refuse, and torch cannot always pickle; not every version of torch has them."""
_NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in (*_COMMON, *_RARE) if hasattr(torch, name)}

_SCRIPTED: list[type] = [
    getattr(torch.jit, name)
    for name in ("RecursiveScriptModule", "TopLevelTracedModule", "ScriptModule", "ScriptFunction")
]
_TRAITS = attrgetter("shape", "dtype", "layout", "device", "requires_grad")


class TorchArrays(ArrayCodec):
    """Stacks contiguous tensors of one dtype and shape that are on the CPU and need no gradient."""

    movable = (torch.Tensor, torch.nn.Parameter)

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """The tensors as one piece; None if they differ, belong to a subclass, or are unusual in any way."""
        first = values[0]
        if set(map(type, values)) != {torch.Tensor} or _is_unusual(first):
            return None
        if _NAMES[first.dtype] in _RARE or not first.is_cpu or first.requires_grad or not _agree(values):
            return None
        shape = tuple(first.shape)

        def write(memory: memoryview) -> None:
            if len(memory):
                torch.stack([*values], out=torch.frombuffer(memory, dtype=first.dtype).view(len(values), *shape))

        return Stacked((_NAMES[first.dtype], shape), first.nbytes * len(values), write)

    def unstack(self, layout: Any, memory: memoryview, count: int) -> list[Any]:
        """Tensors on ``memory``, or on a copy if it is read-only, which a tensor cannot be.

        Each has a storage of its own, so that the pickle of one does not contain all of them.
        """
        name, shape = layout
        dtype = getattr(torch, name)
        if not len(memory):
            return [torch.empty(shape, dtype=dtype) for _ in range(count)]
        memory, size = _writable(memory), len(memory) // count
        length = size // dtype.itemsize
        rows = [torch.frombuffer(memory, dtype=dtype, count=length, offset=at) for at in range(0, len(memory), size)]
        return rows if len(shape) == 1 else [row.view(shape) for row in rows]

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """A tensor on another device arrives in the CPU's memory; ``requires_grad`` is kept, its history is not."""
        return {torch.Tensor: _reduce}

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Whole storages; torch's own pickling describes the tensors and modules around them.

        An ``UntypedStorage`` that belongs to no tensor comes back as a ``TypedStorage``, as from ``torch.load``.
        """
        return {
            torch.UntypedStorage: _export_storage,
            torch.TypedStorage: _export_typed_storage,
            **dict.fromkeys(self.movable, _reduce_unusual),
            **dict.fromkeys(_SCRIPTED, _refuse_script),
        }

    def movers(self, arrays: Sequence[torch.Tensor]) -> Mapping[Span, Callable[[memoryview], None]]:
        """For each storage, what moves the tensors given; tensors elsewhere that share it keep the old one."""
        sharers: dict[Span, list[torch.Tensor]] = defaultdict(list)
        for tensor in arrays:
            if _is_movable(tensor):
                storage = tensor.untyped_storage()
                sharers[storage.data_ptr(), storage.nbytes()].append(tensor)
        return {span: partial(_move, tensors) for span, tensors in sharers.items()}

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Limits the threads within an operation; torch fixes the number between operations once one has run."""
        before = torch.get_num_threads()
        torch.set_num_threads(min(count, before))
        return partial(torch.set_num_threads, before)


def _is_unusual(tensor: torch.Tensor) -> bool:
    """Whether a tensor is more than numbers in memory, so that torch itself must pickle it."""
    return bool(
        tensor.is_nested
        or tensor.layout is not torch.strided
        or tensor.dtype not in _NAMES
        or tensor.is_meta
        or tensor._backward_hooks
        or vars(tensor)
    )


def _agree(values: Sequence[torch.Tensor]) -> bool:
    """Whether all are like the first, contiguous, and without attributes of their own."""
    try:
        alike = all(map(eq, map(_TRAITS, values), repeat(_TRAITS(values[0]))))
    except RuntimeError:  # a nested tensor has no shape
        return False
    return alike and all(map(torch.Tensor.is_contiguous, values)) and not any(map(vars, values))


def _reduce(tensor: torch.Tensor) -> Any:
    if _is_unusual(tensor):
        return _reduce_unusual(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # a single element may have any stride
    data: Any = flat.view(torch.uint8).numpy()
    return _rebuilt, (PickleBuffer(data), _NAMES[tensor.dtype], tuple(tensor.shape), tensor.requires_grad)


def _reduce_unusual(tensor: torch.Tensor) -> Any:
    """Reduces as torch does, which keeps the sparse tensors that it rebuilds until its next load, to validate them."""
    reduced: Any = tensor.__reduce_ex__(5)
    return reduced if tensor.layout is torch.strided else (_validated, (*reduced[:2], tensor.requires_grad))


def _validated(rebuild: Callable[..., Any], parts: tuple[Any, ...], requires_grad: bool) -> torch.Tensor:
    tensor: torch.Tensor = rebuild(*parts)
    torch._utils._validate_loaded_sparse_tensors()
    return tensor.requires_grad_(requires_grad)


def _rebuilt(data: Any, name: str, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    memory, dtype = _writable(memoryview(data)), getattr(torch, name)
    whole = torch.frombuffer(memory if len(memory) else bytearray(dtype.itemsize), dtype=dtype)
    tensor = (whole if len(memory) else whole[:0]).view(shape)  # torch.empty warns of rare dtypes
    return tensor.requires_grad_(requires_grad)


def _writable(memory: memoryview) -> memoryview:
    return memoryview(bytearray(memory)) if memory.readonly else memory


def _is_movable(tensor: torch.Tensor) -> bool:
    """Whether its storage, shape and strides say everything; a quantized or a nested tensor is more than those."""
    is_strided = tensor.layout is torch.strided and tensor.dtype in _NAMES and not tensor.is_nested
    return is_strided and tensor.is_cpu and not (tensor.is_conj() or tensor.is_neg())


def _move(tensors: Sequence[torch.Tensor], memory: memoryview) -> None:
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    for tensor in tensors:
        moved = torch.empty(0, dtype=tensor.dtype)
        tensor.data = moved.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _export_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu":
        raise NotMappableError(f"a tensor lies on {storage.device}")
    data: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _storage_on, (PickleBuffer(data),)


def _storage_on(memory: Any) -> torch.TypedStorage:
    """A storage with a type, since torch's functions that rebuild tensors expect one, and then override it."""
    data = torch.frombuffer(memory, dtype=torch.uint8) if memoryview(memory) else torch.empty(0, dtype=torch.uint8)
    storage: torch.TypedStorage = data._typed_storage()
    return storage


def _export_typed_storage(storage: torch.TypedStorage) -> Any:
    return _retyped, (storage._untyped_storage, storage.dtype)


def _retyped(storage: torch.TypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True)


def _refuse_script(_: Any) -> Any:
    raise NotMappableError("TorchScript is compiled code that does not pickle")
