"""Values moved into shared memory come back as they were, strides and sharing included, whatever holds them."""

from __future__ import annotations

import os
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.arrays import LARGE
from headrace.ipc.weights_file import attach, export

pytestmark = pytest.mark.large

DTYPES = st.sampled_from(["?", "i1", "i4", ">f8", "c8", "S5", "M8[s]", "f2", [("a", "i4"), ("b", "f8", 3)]])
TORCH_DTYPES = st.sampled_from(
    [torch.bool, torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.float32, torch.complex64]
)
SIDES = st.sampled_from([0, 1, 3, 40, 111])


def content(seed: int, size: int, is_bool: bool) -> bytearray:
    drawn = numpy.random.default_rng(seed).integers(0, 2 if is_bool else 50, size, "u1")
    return bytearray(drawn.tobytes())


@st.composite
def arrays(draw: Any) -> Any:
    dtype, shape = numpy.dtype(draw(DTYPES)), (draw(SIDES), draw(SIDES))
    filled = content(draw(st.integers(0, 9)), dtype.itemsize * shape[0] * shape[1], dtype.kind == "b")
    return numpy.frombuffer(filled, dtype).reshape(shape) if filled else numpy.empty(shape, dtype)


@st.composite
def tensors(draw: Any) -> Any:
    dtype, shape = draw(TORCH_DTYPES), (draw(SIDES), draw(SIDES))
    filled = content(draw(st.integers(0, 9)), dtype.itemsize * shape[0] * shape[1], dtype is torch.bool)
    return torch.frombuffer(filled, dtype=dtype).view(shape) if filled else torch.empty(shape, dtype=dtype)


STEPS = st.sampled_from([1, 1, 2, 3])
VIEWS = st.lists(
    st.one_of(
        st.just(lambda a: a.T),
        st.just(lambda a: a[:-1]),
        st.builds(lambda step: lambda a: a[::step], STEPS),
        st.builds(lambda step: lambda a: a[:, ::step], STEPS),
        st.just(lambda a: a[:, 1:]),
        st.just(lambda a: a[::-1] if isinstance(a, numpy.ndarray) else a),
        st.just(lambda a: torch.nn.Parameter(a, requires_grad=False) if isinstance(a, torch.Tensor) else a),
    ),
    max_size=3,
)


@st.composite
def leaves(draw: Any, base: Any) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(st.none(), st.integers(), st.text(), st.binary(max_size=10_000)))
    view = base
    for step in draw(VIEWS):
        view = step(view)
    return view


@st.composite
def values(draw: Any) -> Any:
    """Containers of views on some arrays, which may overlap, be the same, or be of numpy and torch both."""
    bases = draw(st.lists(st.one_of(arrays(), tensors()), min_size=1, max_size=3))
    if draw(st.booleans()):
        bases.append(torch.arange(10_000.0).view(100, 100))
        bases.append(bases[-1].numpy())
    leaf = st.sampled_from(bases).flatmap(leaves)
    containers = st.recursive(
        leaf, lambda part: st.one_of(st.lists(part), st.dictionaries(st.text(max_size=3), part), st.tuples(part, part))
    )
    return draw(st.lists(containers, max_size=4))


def leaves_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *leaves_of(list(value.values()))]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves_of(part)]
    return [value]


def described(leaf: Any) -> Any:
    """Everything about a leaf that can be compared."""
    if isinstance(leaf, torch.Tensor):
        flat = (
            leaf.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy().tobytes()
            if leaf.numel()
            else b""
        )
        return type(leaf), leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.requires_grad, flat
    if isinstance(leaf, numpy.ndarray):
        strides = leaf.strides if leaf.size else None  # numpy's own pickles do not keep those of nothing
        return type(leaf), leaf.dtype, leaf.shape, strides, leaf.flags.writeable, leaf.tobytes()
    return leaf


def shared(all_leaves: list[Any]) -> list[tuple[int, int]]:
    """Which of the large arrays, and of the tensors' storages, lie in the same memory."""
    spans = [(i, *span(leaf)) for i, leaf in enumerate(all_leaves)]
    large = [one for one in spans if one[2] - one[1] >= LARGE]
    return [(i, j) for i, start, end in large for j, begin, stop in large if i < j and start < stop and begin < end]


def span(leaf: Any) -> tuple[int, int]:
    if isinstance(leaf, torch.Tensor):
        storage = leaf.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return numpy.lib.array_utils.byte_bounds(leaf) if isinstance(leaf, numpy.ndarray) and leaf.size else (0, 0)


@given(values())
@settings(max_examples=100)
def test_values_come_back_as_they_were(value):
    expected, shape = list(map(described, leaves_of(value))), list(map(type, value))
    overlaps = shared(leaves_of(value))
    files, description = export(value, destroys=True)
    came, again = attach(files, description), attach(files, description)
    for file in files:
        os.close(file)
    assert list(map(type, came)) == shape
    assert list(map(described, leaves_of(came))) == expected
    assert shared(leaves_of(came)) == overlaps
    for leaf in leaves_of(came):
        if isinstance(leaf, torch.Tensor):
            leaf.detach().zero_()
        elif isinstance(leaf, numpy.ndarray):
            leaf[...] = numpy.zeros((), leaf.dtype)
    assert list(map(described, leaves_of(again))) == expected
