"""Tensors through plain memory: what is stacked, what is not, and what a pickle takes along."""

from __future__ import annotations

import functools
import gc
import pickle
import weakref

import pytest
import torch

import array_memory
from headrace.core.arrays import NotMappableError
from headrace.handlers.torch_arrays import _COMMON, _NAMES, TorchArrays

pytestmark = pytest.mark.large

CODEC = TorchArrays()
through_memory = functools.partial(array_memory.through_memory, CODEC)
pickled = functools.partial(array_memory.pickled, CODEC)
DTYPES = list(_NAMES)


def moved(value):
    return array_memory.moved(CODEC, value)[0]


def filled(dtype, *shape, start=1):
    """A tensor of any dtype: counts bytes, or alternates where only 0 and 1 are allowed."""
    size = torch.Size(shape).numel() * dtype.itemsize
    content = bytearray((start + i) % (2 if dtype is torch.bool else 100) for i in range(size))
    flat = torch.frombuffer(content or bytearray(16), dtype=dtype)
    return (flat if size else flat[:0]).view(shape)


def bits(tensor):
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (), (1,), (0,), (2, 0, 3)], ids=str)
def test_tensors_of_every_dtype_return_unchanged(dtype, shape):
    tensors = [filled(dtype, *shape, start=i) for i in range(4)]
    arrived = through_memory(tensors)[0] if _NAMES[dtype] in _COMMON else tensors
    for came, again, sent in zip(arrived, (pickled(tensor)[0] for tensor in tensors), tensors, strict=True):
        for tensor in (came, again):
            assert type(tensor) is torch.Tensor
            assert (tensor.dtype, tensor.shape, tensor.requires_grad) == (dtype, shape, False)
            assert bits(tensor) == bits(sent)


class Special(torch.Tensor):
    pass


def with_attribute(tensor):
    tensor.note = "kept"
    return tensor


def nested():
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


T = torch.zeros(2, 2)
UNEQUAL = {
    "dtypes": lambda: [T, T.double()],
    "shapes": lambda: [T, T[:1]],
    "types": lambda: [T, None],
    "subclass": lambda: [T.as_subclass(Special), T.as_subclass(Special)],
    "parameters": lambda: [torch.nn.Parameter(T, requires_grad=False)],
    "gradient": lambda: [torch.zeros(2, 2, requires_grad=True)],
    "transposed": lambda: [torch.zeros(3, 2).T],
    "strided": lambda: [torch.zeros(6)[::2]],
    "sparse": lambda: [T.to_sparse(), T.to_sparse()],
    "meta": lambda: [torch.zeros(2, 2, device="meta")],
    "attribute": lambda: [with_attribute(torch.zeros(2, 2)), T],
    "one attribute": lambda: [T, with_attribute(torch.zeros(2, 2))],
    "nested": lambda: [nested()],
    "packed bits": lambda: [torch.zeros(2, dtype=torch.uint8).view(torch.bits8)],
    "a dtype": lambda: [torch.float32],
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("make", UNEQUAL.values(), ids=UNEQUAL.keys())
def test_rows_that_would_return_changed_are_not_stacked(make):
    assert CODEC.stack(make()) is None


def test_rows_are_views():
    rows, memory = through_memory([torch.zeros(2, 2), torch.zeros(2, 2)])
    rows[1][:] = 1
    assert bytes(memory[16:]) == torch.ones(4).numpy().tobytes()
    with pytest.raises(BufferError):
        memory.clear()
    del rows
    gc.collect()
    memory.clear()
    stacked = CODEC.stack([torch.zeros(2), torch.ones(2)])
    content = bytes(16)  # which cannot be written to, and is copied
    CODEC.unstack(stacked.layout, memoryview(content), 2)[1][:] = 7
    assert content == bytes(16)


@pytest.mark.parametrize("shape", [(4,), (2, 2), ()], ids=str)
def test_a_row_is_a_tensor_in_its_own_right(shape):
    """A view of the batch could not be changed in place by what needs a gradient, and its pickle is the batch's."""
    rows, _ = through_memory([torch.ones(shape) for _ in range(1000)])
    assert len(pickle.dumps(rows[0])) < 1000
    assert rows[1].mul_(torch.ones(shape, requires_grad=True)).requires_grad


ALL_DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:.*support is experimental:UserWarning", "ignore:.*deprecated:UserWarning")
def test_storages_of_every_dtype_return_unchanged(dtype):
    content = torch.arange(4096, dtype=torch.uint8) % 2
    tensor = content.view(dtype)
    came, alias = moved((tensor, tensor))
    assert came is alias
    assert (came.dtype, came.shape, came.stride()) == (dtype, tensor.shape, tensor.stride())
    assert bytes(came.untyped_storage().tolist()) == bytes(content.tolist())


BLOCKS = torch.block_diag(torch.ones(2, 2), torch.full((2, 2), 2.0))
SPARSE = {
    "coordinates": BLOCKS.to_sparse,
    "csr": BLOCKS.to_sparse_csr,
    "bsc": lambda: BLOCKS.to_sparse_bsc((2, 2)),
    "gradient": lambda: BLOCKS.to_sparse().requires_grad_(),
    "attribute": lambda: with_attribute(BLOCKS.to_sparse_csc()),
    "parameter": lambda: torch.nn.Parameter(BLOCKS.to_sparse()),
}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE.keys())
@pytest.mark.parametrize("travel", [lambda tensor: pickled(tensor)[0], moved], ids=["to another process", "in a model"])
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
def test_sparse_tensors_return_unchanged_and_are_released(make, travel):
    """torch's own unpickling keeps each until the next file is loaded, which then validates all of them."""
    tensor = make()
    came = travel(tensor)
    traits = ("dtype", "shape", "layout", "device", "requires_grad")
    assert [getattr(came, name) for name in traits] == [getattr(tensor, name) for name in traits]
    assert (type(came), getattr(came, "note", None)) == (type(tensor), getattr(tensor, "note", None))
    with torch.no_grad():
        assert came.to_dense().tolist() == tensor.to_dense().tolist()
    gone = weakref.ref(came)
    del came
    gc.collect()
    assert gone() is None


def test_meta_tensors_return_unchanged_and_other_devices_are_refused():
    assert moved(torch.zeros(2, device="meta")).is_meta
    with pytest.raises(NotMappableError, match=r"^a tensor lies on meta$"):
        moved(torch.zeros(2, device="meta").untyped_storage())


@pytest.mark.parametrize(("limit", "left"), [(2, 2), (4, 3)])
def test_threads_are_limited_and_restored(limit, left):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        restore = CODEC.limit_threads(limit)
        assert torch.get_num_threads() == left
        restore()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
