"""Rows of any content arrive as they were: in columns or not, as views or owned, alone or answering a request."""

from __future__ import annotations

import datetime
import decimal
import math
import mmap
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace import PredictionResult
from headrace.handlers import numpy_arrays
from headrace.ipc import columns
from headrace.ipc.codec import decode, encode

pytestmark = pytest.mark.large


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Record:
    name: Any
    value: Any


class Plain:
    def __init__(self, value):
        self.value = value


SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
DTYPES = st.one_of(
    npst.scalar_dtypes(),
    npst.byte_string_dtypes(max_len=4),
    npst.unicode_string_dtypes(max_len=4),
    npst.nested_dtypes(max_itemsize=64),
    st.just(numpy.dtype(object)),
    st.just(numpy.dtype("f4", metadata={"unit": "m"})),
)
LAYOUTS = st.sampled_from(
    [lambda a: a, lambda a: a, lambda a: a, numpy.asfortranarray, lambda a: a.T, lambda a: a[::2] if a.ndim else a]
)
TORCH_DTYPES = st.sampled_from(
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        torch.float8_e4m3fn,
    ]
)
TORCH_LAYOUTS = st.sampled_from(
    [
        *(lambda t: t, lambda t: t, lambda t: t.mT if t.ndim > 1 else t, lambda t: t[::2] if t.ndim else t),
        *(lambda t: t.conj() if t.is_complex() else t, lambda t: t.conj().imag if t.is_complex() else t),
        lambda t: t.clone().requires_grad_() if t.dtype in (torch.float32, torch.complex64) else t,
        lambda t: torch.nn.Parameter(t.clone(), requires_grad=False),
        lambda t: t.to_sparse() if t.dtype is torch.float32 and t.ndim else t,
    ]
)


def arrays(dtype: Any, shape: Any) -> st.SearchStrategy[Any]:
    items = st.one_of(st.integers(), st.text(max_size=3), st.none()) if dtype.kind == "O" else None
    if dtype.metadata:
        return npst.arrays("f4", shape).map(lambda a: a.view(dtype))
    return npst.arrays(dtype, shape, elements=items)


@st.composite
def tensors(draw: Any, dtype: Any, shape: Any) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    content = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        content = bytearray(byte & 1 for byte in content)
    return torch.frombuffer(content, dtype=dtype).view(shape) if size else torch.empty(shape, dtype=dtype)


# Each of these draws a strategy, from which all rows of a batch are drawn: rows alike, as they mostly are.
ALIKE = st.one_of(
    st.builds(arrays, DTYPES, SHAPES),
    st.builds(arrays, DTYPES, SHAPES).map(lambda alike: st.builds(lambda layout, a: layout(a), LAYOUTS, alike)),
    st.builds(arrays, DTYPES, st.just(SHAPES)),  # ragged
    npst.scalar_dtypes().map(lambda dtype: npst.arrays(dtype, ()).map(lambda a: a[()])),
    st.builds(tensors, TORCH_DTYPES, SHAPES),
    st.builds(tensors, TORCH_DTYPES, SHAPES).map(lambda alike: st.builds(lambda f, t: f(t), TORCH_LAYOUTS, alike)),
    st.builds(lambda dtype: SHAPES.flatmap(lambda shape: tensors(dtype, shape)), TORCH_DTYPES),
    st.sampled_from(
        [
            *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just("same")),
            *(st.decimals(allow_nan=False), st.dates(), st.just(()), st.just({}), st.just([])),
            st.builds(Plain, st.integers()),
        ]
    ),
)
KEYS = st.sampled_from([("a", "b", "c"), ("", "a", "\0"), ("a", "b", 1), (True, "a", "b")])
WHOLES = ["leaf", "leaf", "tuple", "point", "result", "dict", "dict", "record", "list"]


@st.composite
def rows_alike(draw: Any, depth: int = 3) -> st.SearchStrategy[Any]:
    whole = draw(st.sampled_from(WHOLES)) if depth else "leaf"
    if whole == "leaf":
        return draw(ALIKE)
    parts = draw(st.lists(rows_alike(depth - 1), min_size=2 if whole in ("point", "record") else 1, max_size=2))
    match whole:
        case "tuple":
            return st.tuples(*parts)
        case "point":
            return st.builds(Point, *parts)
        case "result":
            return st.builds(PredictionResult, *parts, st.just("model"))
        case "dict":
            return st.fixed_dictionaries(dict(zip(draw(KEYS), parts)))
        case "record":
            return st.builds(Record, *parts)
        case _:
            return st.lists(parts[0], max_size=3)


@st.composite
def batches(draw: Any) -> list[Any]:
    rows = draw(st.lists(draw(rows_alike()), max_size=5))
    if rows and draw(st.integers(0, 4)) == 0:
        rows[draw(st.integers(0, len(rows) - 1))] = draw(draw(rows_alike()))  # one that differs
    return rows


def same(one: Any, other: Any) -> bool:
    """Whether two objects are equal in types, dtypes, shapes and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensors(one, other)
    if isinstance(one, numpy.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, numpy.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(same, one.values(), other.values()))
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, Plain):
        return same(one.value, other.value)
    assert one is None or isinstance(one, bool | int | float | str | bytes | decimal.Decimal | datetime.date)
    return repr(one) == repr(other)


def _same_arrays(one: Any, other: Any) -> bool:
    if not one.dtype.isnative and other.dtype.isnative:  # what numpy makes of some, as it unpickles them
        one = one.astype(other.dtype, casting="equiv")
    alike = one.dtype == other.dtype and one.shape == other.shape and one.dtype.metadata == other.dtype.metadata
    if one.flags.f_contiguous:
        alike &= other.flags.f_contiguous
    return alike and (same(one.tolist(), other.tolist()) if one.dtype.hasobject else one.tobytes() == other.tobytes())


def _same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    traits = ("dtype", "shape", "layout", "requires_grad")
    return all(getattr(one, name) == getattr(other, name) for name in traits) and _bits(one) == _bits(other)


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        sparse = tensor.coalesce()
        return _bits(sparse.indices()) + _bits(sparse.values())
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


@pytest.fixture(autouse=True, scope="module", params=[True, False], ids=["small batches", "as if large"])
def _small(request):
    """What is small takes shorter ways, which must make no difference."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(columns, "_SMALL", -1)
            patch.setattr(columns, "_FEW", -1)
            patch.setattr(numpy_arrays, "_SMALL", -1)
            patch.setattr(numpy_arrays, "_SMALL_TOGETHER", -1)
        yield


def travelled(message: Any) -> memoryview:
    memory = memoryview(mmap.mmap(-1, message.nbytes + 100))
    memory[:] = b"\xa5" * len(memory)
    message.write(memory)
    assert bytes(memory[message.nbytes :]) == b"\xa5" * 100
    return memory


@given(batches(), st.booleans())
@settings(max_examples=200)
def test_rows_arrive_as_they_were_though_the_message_is_written_again(rows, own):
    message = encode({"work": 1}, rows)
    memory, again = travelled(message), travelled(message)
    head, arrived, columns = decode(memory, own=own)
    assert head == {"work": 1}
    assert same(rows, arrived)
    assert same(message.columns, columns)
    if own:
        memory[:] = b"\x5a" * len(memory)
        assert same(rows, arrived)
    assert same(rows, decode(again, own=not own).rows)


@st.composite
def answered(draw: Any) -> tuple[list[Any], list[int], list[Any]]:
    """A request, the rows of it that are answered, and the answer."""
    rows = draw(batches())
    places = draw(st.permutations(range(len(rows))))[: draw(st.integers(0, len(rows)))]
    alike = draw(rows_alike())
    return rows, places, [draw(alike) for _ in places]


@given(answered(), st.booleans())
@settings(max_examples=100)
def test_an_answer_brings_the_very_objects_of_the_request_back(request_and_answer, own):
    rows, places, inferences = request_and_answer
    request = encode(None, rows)
    came = decode(travelled(request), own=False)
    examples = [came.rows[place] for place in places]
    answer = [(place, PredictionResult(*both)) for place, both in zip(places, zip(examples, inferences))]
    memory = travelled(encode("answer", answer, known=came.columns, positions=places))
    arrived = decode(memory, known=request.columns, own=own).rows
    expected = [(place, PredictionResult(rows[place], one)) for place, one in zip(places, inferences)]
    assert same(expected, arrived)
    assert all(result.example is rows[place] for place, result in arrived)
    if own:
        memory[:] = b"\x5a" * len(memory)
        assert same(expected, arrived)


@given(batches(), st.data(), st.integers(1, 3))
@settings(max_examples=50)
def test_rows_answer_in_order_without_positions_be_they_fewer_or_more(rows, data, more):
    count = data.draw(st.integers(0, len(rows)))
    request = encode(None, rows)
    came = decode(travelled(request), own=False)
    fewer, longer = [PredictionResult(row, 1) for row in came.rows[:count]], [*came.rows, *range(more)]
    results, arrived = (
        decode(travelled(encode(None, answer, known=came.columns)), known=request.columns, own=True).rows
        for answer in (fewer, longer)
    )
    assert len(results) == count
    assert all(result.example is row for result, row in zip(results, rows))
    assert same([*rows, *range(more)], arrived)
