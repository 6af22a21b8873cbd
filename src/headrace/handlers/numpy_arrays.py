"""The plug-in for numpy in ``headrace.arrays``: how arrays and scalars travel between processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq, is_
from pickle import PickleBuffer
from typing import Any, Literal

from headrace.core.arrays import LARGE, ArrayCodec, Stacked
from headrace.core.errors import extra_required

with extra_required("onnx"):
    import numpy

__all__ = ["NumpyArrays"]

Array = numpy.ndarray[Any, Any]

_SCALARS = {numpy.dtype(code).type for code in numpy.typecodes["AllInteger"] + numpy.typecodes["AllFloat"] + "?"}
"""Types that determine a scalar's memory completely, unlike datetime64, str_ or void."""
_SMALL = 1 << 10
_SMALL_TOGETHER = 1 << 13
"""Bytes, of each array or of all: larger ones are not copied before they are written."""

_DTYPE = attrgetter("dtype")
_SHAPE = attrgetter("shape")
_PLACEMENT = attrgetter("shape", "strides")


class NumpyArrays(ArrayCodec):
    """Stacks C-contiguous arrays of numbers of one dtype and shape, and scalars of one type."""

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """The values as one piece; None if they differ, belong to a subclass, or are no numbers."""
        kind: type = type(values[0])
        if (kind is not numpy.ndarray and kind not in _SCALARS) or [*map(type, values)].count(kind) != len(values):
            return None
        if kind is numpy.ndarray:
            return _stacked_arrays(values)
        dtype = values[0].dtype
        return _copied((dtype.char, None), numpy.fromiter(values, dtype, len(values)).tobytes())

    def unstack(self, layout: Any, memory: memoryview, count: int) -> list[Any]:
        """Arrays as views on ``memory``, or scalars."""
        code, shape = layout
        if shape is None:
            return list(numpy.frombuffer(memory, code))
        block = _on(memory, code, (count, *shape))
        return list(block) if shape else [block[index, ...] for index in range(count)]

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """Contiguous arrays, in C's order or Fortran's, are not copied; others are made contiguous."""
        return {numpy.ndarray: _reduce}

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Arrays keep their strides, and whether they are writable; memory-mapped files are read into memory.

        Arrays that overlap still overlap afterwards, if each has at least ``LARGE`` bytes.
        """
        return {numpy.ndarray: _export, numpy.memmap: _export}

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Limits numpy's BLAS, and OpenMP, with which scikit-learn computes.

        Does nothing without scikit-learn, which imports threadpoolctl: BLAS reads its number of threads from the
        environment when it is loaded, and offers no other common way to change it.
        """
        threadpoolctl = sys.modules.get("threadpoolctl")
        found = [] if threadpoolctl is None else threadpoolctl.ThreadpoolController().lib_controllers
        before = [(pool, _threads_before(pool)) for pool in found if pool.num_threads is not None]  # it can be changed
        for pool, threads in before:
            pool.set_num_threads(min(count, threads))

        def undo() -> None:
            for pool, threads in before:
                pool.set_num_threads(threads)

        return undo


_BLAS_THREADS: dict[str, int] = {}
"""Before any limit, by the path of the library. Its number is the process's, so another thread may have limited it."""


def _threads_before(pool: Any) -> int:
    threads: int = pool.num_threads
    return _BLAS_THREADS.setdefault(pool.filepath, threads) if pool.user_api == "blas" else threads


def _stacked_arrays(values: Sequence[Array]) -> Stacked | None:
    first, count = values[0], len(values)
    dtype, shape = first.dtype, first.shape
    if not (first.flags.c_contiguous and _is_plain(dtype) and _same_dtypes(values)):
        return None
    if not shape or first.nbytes <= max(_SMALL, _SMALL_TOGETHER // count):
        return _joined_arrays(values)
    if not all(map(eq, map(_PLACEMENT, values), repeat(_PLACEMENT(first)))):
        return None  # with equal strides, all are contiguous if the first is

    def write(memory: memoryview) -> None:
        block = _on(memory, dtype, (count, *shape))  # numpy.stack takes three times as long
        numpy.concatenate(values, out=block.reshape(count * shape[0], *shape[1:]), casting="no")

    return Stacked((dtype.char, shape), first.nbytes * count, write)


def _joined_arrays(values: Sequence[Array]) -> Stacked | None:
    """Small arrays, copied at once: three times as fast as numpy, whose cost for each array is what counts here."""
    shape = values[0].shape
    if [*map(_SHAPE, values)].count(shape) != len(values):
        return None
    try:
        return _copied((values[0].dtype.char, shape), b"".join(values))  # type: ignore[arg-type]
    except TypeError:  # one is not contiguous
        return None


def _copied(layout: Any, content: bytes) -> Stacked:
    def write(memory: memoryview) -> None:
        memory[:] = content

    return Stacked(layout, len(content), write)


def _is_plain(dtype: numpy.dtype[Any]) -> bool:
    """Whether elements are numbers in native byte order, which the dtype's letter describes fully."""
    return dtype.kind in "biufc" and dtype.isbuiltin == 1 and not dtype.metadata


def _same_dtypes(values: Sequence[Array]) -> bool:
    dtype = values[0].dtype
    return all(map(is_, map(_DTYPE, values), repeat(dtype))) or all(
        other == dtype and not other.metadata for other in map(_DTYPE, values)
    )


def _reduce(array: Array) -> Any:
    """An array's reduction; a small one is restored without Python code, three times as fast as numpy's own."""
    if not _is_plain(array.dtype):
        return array.__reduce_ex__(5)
    array = array if array.flags.forc else array.copy()
    order = "C" if array.flags.c_contiguous else "F"
    buffer = PickleBuffer(array)  # type: ignore[arg-type]
    if array.nbytes >= LARGE:
        return _on, (buffer, array.dtype, array.shape, order)
    return numpy.ndarray, (array.shape, array.dtype, buffer, 0, None, order)


def _on(memory: memoryview, dtype: Any, shape: tuple[int, ...], order: Literal["C", "F"] = "C") -> Array:
    """An array on a memory, which it keeps alive; ``numpy.ndarray(...)`` would not."""
    return numpy.frombuffer(memory, dtype).reshape(shape, order=order) if len(memory) else numpy.empty(shape, dtype)


def _export(array: Array) -> Any:
    """An array as the memory from its first byte to its last, and its layout there."""
    if array.dtype.hasobject or not array.nbytes:
        return array.__reduce_ex__(5)
    memory = _Extent(array)
    buffer = PickleBuffer(numpy.asarray(memory))  # type: ignore[arg-type]
    make = numpy.ndarray if type(array) is numpy.ndarray else _memmap
    return make, (array.shape, array.dtype, buffer, memory.start, array.strides)


def _memmap(*place: Any) -> Array:
    return numpy.ndarray(*place).view(numpy.memmap)


class _Extent:
    """The memory from an array's first byte to its last, whatever the strides, as a 1-D array of bytes.

    Attributes:
        start: offset of the array's first element, in bytes.
    """

    def __init__(self, array: Array) -> None:
        ways = [stride * (length - 1) for stride, length in zip(array.strides, array.shape, strict=True)]
        self.start = -sum(way for way in ways if way < 0)
        size = self.start + sum(way for way in ways if way > 0) + array.itemsize
        self._array = array
        place = (array.__array_interface__["data"][0] - self.start, not array.flags.writeable)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": place}
