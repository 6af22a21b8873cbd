"""Columnar elements of every kind are cut and joined by rows, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import itertools
import math

import numpy
import pandas
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import BatchingConfig
from headrace.batching.batcher import Batch
from headrace.batching.columnar import (
    ColumnarBatch,
    RowBatcher,
    as_columns,
    concatenate,
    rows_in,
    slice_rows,
    split,
    without_views,
)
from headrace.batching.size import SizeController
from large import torch

KINDS = {
    "array": numpy.array,
    "matrix": lambda rows: numpy.array(rows, dtype="f4").reshape(-1, 1) * numpy.ones((1, 3), dtype="f4"),
    "dict": lambda rows: {"a": numpy.array(rows), "b": list(map(str, rows))},
    "record batch": lambda rows: pyarrow.record_batch({"a": pyarrow.array(rows), "b": pyarrow.array(map(str, rows))}),
    "table": lambda rows: pyarrow.table({"a": rows}),
    "arrow array": pyarrow.array,
    "frame": lambda rows: pandas.DataFrame({"a": rows, "b": list(map(str, rows))}),
    "list": list,
}
if torch:
    TENSORS = {
        "tensor": torch.tensor,
        "dict with a tensor": lambda rows: {"a": numpy.array(rows), "b": torch.tensor(rows) * 2},
    }
    KINDS |= {name: pytest.param(make, marks=pytest.mark.large) for name, make in TENSORS.items()}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def make(request):
    return request.param


def listed(columns):
    """The rows, of whatever kind they are."""
    if isinstance(columns, dict):
        return list(zip(*map(listed, columns.values()), strict=True))
    if isinstance(columns, pyarrow.RecordBatch | pyarrow.Table):
        return columns.to_pylist()
    if isinstance(columns, pandas.DataFrame):
        return columns.values.tolist()
    return columns if isinstance(columns, list) else columns.tolist()


def test_columnar_elements_are_cut_and_joined_by_rows(make):
    whole = make(list(range(10)))
    assert rows_in(whole) == 10
    pieces = [slice_rows(whole, 0, 3), slice_rows(whole, 3, 4), slice_rows(whole, 4, 10)]
    assert list(map(rows_in, pieces)) == [3, 1, 6]
    assert type(concatenate(pieces)) is type(whole)
    assert listed(concatenate(pieces)) == listed(whole)
    assert list(map(listed, split(whole, [3, 1, 6]))) == list(map(listed, pieces))


def test_elements_that_are_not_columnar_or_of_different_kinds_are_refused():
    for element in (3, "text", b"bytes", None, int, {1, 2}):
        with pytest.raises(TypeError, match="a columnar element is"):
            rows_in(element)
    with pytest.raises(ValueError, match="of one length"):
        rows_in({"a": [1], "b": [1, 2]})
    with pytest.raises(TypeError, match="of one type, not"):
        concatenate([numpy.zeros(3), [1, 2, 3]])
    with pytest.raises(ValueError, match="the same columns as the first"):
        concatenate([{"a": [1]}, {"b": [1]}])
    with pytest.raises(ValueError, match="frames of one batch must have the same columns"):
        concatenate([pandas.DataFrame({"a": [1]}), pandas.DataFrame({"b": [1]})])
    with pytest.raises(ValueError, match="dimension"):
        concatenate([numpy.zeros((2, 3)), numpy.zeros((2, 4))])


class Sizes(SizeController):
    """Targets as a test wants them, in turn."""

    def __init__(self, targets, limit=math.inf):
        self.target, self.max_size = iter(targets * 400).__next__, lambda: limit


@given(
    st.lists(st.integers(0, 60), max_size=8),
    st.lists(st.integers(1, 25), min_size=1),
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(0, 12),
)
def test_batches_end_near_their_target_and_lose_no_row(sizes, targets, least, limit, more):
    config = BatchingConfig(least, least + more)
    batcher, batches = RowBatcher(config, Sizes(targets, limit)), []
    elements = [[(tag, row) for row in range(size)] for tag, size in enumerate(sizes)]
    for tag, element in enumerate(elements):
        batches += batcher.add(element, tag, len(element))
    assert len(batcher) == sum(sizes) - sum(batch.total for batch in batches)
    batches.append(batcher.flush())
    assert len(batcher) == 0
    assert [row for batch in batches for row in concatenate([[], *batch.elements])] == list(itertools.chain(*elements))
    for batch in batches:
        assert batch.rows == list(map(len, batch.elements))
        assert all(row[0] == tag for tag, piece in zip(batch.tags, batch.elements, strict=True) for row in piece)
    for batch, target in zip(batches[:-1], targets * 400, strict=False):
        wanted = min(target, least + more)
        slack = 0 if config.fixed_size else wanted // 4
        assert max(wanted - slack, min(least, wanted)) <= batch.total <= max(wanted, min(wanted + slack, limit))
        assert batch.total <= least + more


@given(st.lists(st.integers(0, 9), max_size=6), st.data())
def test_a_part_is_taken_by_rows(sizes, data):
    elements = [[(tag, row) for row in range(size)] for tag, size in enumerate(sizes)]
    batch = as_columns(Batch(elements, list(range(len(sizes)))))
    rows = [row for element in elements for row in element]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows) + 3))
    part = batch.part(start, stop)
    assert [row for piece in part.elements for row in piece] == rows[start:stop]
    assert part.total == len(rows[start:stop])
    assert all(row[0] == tag for tag, piece in zip(part.tags, part.elements, strict=True) for row in piece)


@pytest.mark.large
def test_rows_that_leave_own_their_memory():
    whole = torch.zeros(100_000)
    part = without_views({"a": slice_rows(whole, 10, 20), "b": numpy.arange(3)})
    assert part["a"].untyped_storage().nbytes() == 40
    assert without_views(whole) is whole


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_rows_are_picked_from_pieces(sizes, data):
    total = sum(sizes)
    bounds = [0, *itertools.accumulate(sizes)]
    pieces = [numpy.arange(*bound) for bound in itertools.pairwise(bounds)]
    batch = ColumnarBatch(pieces, list(range(len(sizes))), sizes)
    positions = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    picked, firsts = batch.pick(positions)
    assert [row for piece in picked.elements for row in piece.tolist()] == positions
    assert [piece[0] for piece in picked.elements] == firsts
    assert picked.rows == list(map(len, picked.elements))
    assert all(set(piece) <= set(pieces[tag]) for piece, tag in zip(picked.elements, picked.tags, strict=True))
    assert batch.pick(range(total))[0].rows == batch.rows
