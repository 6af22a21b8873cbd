"""numpy's arrays and scalars through plain memory: what is stacked, what is not, and what a pickle takes along."""

from __future__ import annotations

import functools
import sys

import numpy
import pytest
import threadpoolctl

import array_memory
from headrace.handlers.numpy_arrays import NumpyArrays

CODEC = NumpyArrays()
through_memory = functools.partial(array_memory.through_memory, CODEC)
pickled = functools.partial(array_memory.pickled, CODEC)
moved = functools.partial(array_memory.moved, CODEC)
STRUCTURED = numpy.dtype([("a", ">i4"), ("b", "M8[ns]"), ("c", "f8", (2, 2))])


@pytest.mark.parametrize("dtype", [*"?bhilqBHILQefdgFDG", ">f8", "M8[ns]", ">U3", "V7", STRUCTURED], ids=str)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (), (0,), (2, 0, 3), (30, 50)], ids=str)
def test_arrays_of_every_dtype_return_unchanged(dtype, shape):
    dtype = numpy.dtype(dtype)
    content = numpy.random.default_rng(0).bytes(max(6, numpy.prod(shape, dtype=int)) * dtype.itemsize + 7)
    arrays = [numpy.zeros(shape, dtype) for _ in range(4)]
    if dtype.kind not in "?bU":  # any bits will do
        arrays = [numpy.frombuffer(content, dtype, array.size, 7).reshape(shape) for array in arrays]
    stacked = through_memory(arrays)[0] if dtype.char in "?bhilqBHILQefdgFDG" and dtype.isnative else arrays
    for came, (again, _) in zip(stacked, map(pickled, arrays), strict=True):
        for array in (came, again):
            assert type(array) is numpy.ndarray
            assert (array.dtype, array.dtype.byteorder, array.shape) == (dtype, dtype.byteorder, shape)
            assert array.tobytes() == arrays[0].tobytes()
        assert came.dtype.char == dtype.char


@pytest.mark.parametrize("code", [*"?bhilqBHILQefdgFDG"])
def test_scalars_of_every_type_return_unchanged(code):
    values = list(numpy.array([0, 1, 3], code))
    came, memory = through_memory(values)
    assert [(type(one), one) for one in came] == [(type(one), one) for one in values]
    memory[:] = b"\xff" * len(memory)
    assert came == values


class Special(numpy.ndarray):
    pass


A = numpy.zeros((2, 2))


@pytest.mark.parametrize(
    "values",
    [
        [A, A.astype("f4")],
        [A, A[:1]],
        [A, A.T + 1],
        [A, None],
        [A, numpy.float64(1)],
        [A, A.view(Special)],
        [A, A.view(numpy.dtype("f8", metadata={"unit": "m"}))],
        [A.view(numpy.dtype("f8", metadata={"unit": "m"})), A],
        [numpy.zeros((3, 2)).T],
        [numpy.zeros(6)[::2]],
        [numpy.zeros((2, 2), order="F"), numpy.zeros((2, 2), order="F")],
        [numpy.zeros(2, object)],
        [numpy.zeros(2, ">f8")],
        [numpy.ma.zeros(2)],
        [numpy.float32(1), numpy.float64(1)],
        [numpy.float32(1), numpy.zeros((), "f4")],
        [numpy.datetime64("2020"), numpy.datetime64("2020-01-01")],
        [numpy.dtype("f4")],
    ],
    ids=repr,
)
def test_rows_that_would_return_changed_are_not_stacked(values):
    assert CODEC.stack(values) is None


def test_rows_are_views():
    rows, memory = through_memory(list(numpy.arange(6.0).reshape(3, 2)))
    memory[:] = bytes(len(memory))
    assert not numpy.any(rows)
    rows[1][:] = 1
    assert memory[16:24] == numpy.float64(1).tobytes()
    with pytest.raises(BufferError):
        memory.clear()
    stacked = CODEC.stack(rows)
    assert not CODEC.unstack(stacked.layout, memoryview(bytes(48)), 3)[0].flags.writeable


def test_whole_arrays_without_movable_memory_are_left_to_numpy():
    for array in (numpy.array([None, "text", 1], object), numpy.empty((0, 3), order="F"), numpy.zeros(3, "V0")):
        came, sizes = moved(array)
        assert repr(came) == repr(array)
        assert sum(sizes) == 0


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_thread_limits_hold_until_they_are_undone(monkeypatch):
    """The number of BLAS is the process's: a second thread finds it limited."""
    before = blas_threads()
    undos = [CODEC.limit_threads(1), CODEC.limit_threads(1)]
    assert blas_threads() == {1}
    for undo in undos:
        undo()
    assert blas_threads() == before
    monkeypatch.delitem(sys.modules, "threadpoolctl")  # then limits are left to the environment
    undo = CODEC.limit_threads(1)
    assert blas_threads() == before
    undo()
