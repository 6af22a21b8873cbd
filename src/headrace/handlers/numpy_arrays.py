"""The plug-in for numpy in ``headrace.arrays``: how arrays and scalars travel between processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq, is_
from pickle import PickleBuffer
from typing import Any, Literal

from headrace.core.arrays import LARGE, NoArrays, Stacked
from headrace.core.errors import extra_required

with extra_required("onnx"):
    import numpy

__all__ = ["NumpyArrays"]

Array = numpy.ndarray[Any, Any]

_SCALARS = {numpy.dtype(code).type for code in numpy.typecodes["AllInteger"] + numpy.typecodes["AllFloat"] + "?"}
"""Types that determine a scalar's memory completely, unlike datetime64, str_ or void."""

_NUMBERS = "biufc"
"""Kinds of dtypes that have a buffer for Python."""
_SMALL = 1 << 10
_SMALL_TOGETHER = 1 << 13
"""Bytes, of each array or of all: larger ones are not copied before they are written."""

_DTYPE = attrgetter("dtype")
_SHAPE = attrgetter("shape")
_DIMENSIONS = attrgetter("ndim")
_PLACEMENT = attrgetter("shape", "strides")


class NumpyArrays(NoArrays):
    """Stacks C-contiguous arrays of one dtype and shape, and scalars of one type; an array keeps its memory."""

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """The values as one piece; None if they differ, belong to a subclass, or hold Python objects."""
        kind: type = type(values[0])
        if (kind is not numpy.ndarray and kind not in _SCALARS) or [*map(type, values)].count(kind) != len(values):
            return None
        return _stacked_arrays(values) if kind is numpy.ndarray else _stacked_scalars(values)

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
        pools = [pool for pool in found if pool.num_threads is not None]  # a BLAS may be built without its functions
        before = [_threads_before(pool) for pool in pools]
        for pool, threads in zip(pools, before, strict=True):
            pool.set_num_threads(min(count, threads))

        def undo() -> None:
            for pool, threads in zip(pools, before, strict=True):
                pool.set_num_threads(threads)

        return undo


_BLAS_THREADS: dict[str, int] = {}
"""Before any limit, by the path of the library. Its number is the process's, so another thread may have limited it."""


def _threads_before(pool: Any) -> int:
    threads: int = pool.num_threads
    return _BLAS_THREADS.setdefault(pool.filepath, threads) if pool.user_api == "blas" else threads


def _stacked_scalars(values: Sequence[Any]) -> Stacked:
    dtype, count = values[0].dtype, len(values)

    def write(memory: memoryview) -> None:
        numpy.frombuffer(memory, dtype)[:] = numpy.fromiter(values, dtype, count)

    return Stacked((_code(dtype), None), dtype.itemsize * count, write)


def _stacked_arrays(values: Sequence[Array]) -> Stacked | None:
    first, count = values[0], len(values)
    dtype, shape = first.dtype, first.shape
    if not (first.flags.c_contiguous and _is_plain(dtype) and (count == 1 or _same_dtypes(values))):
        return None
    if first.nbytes <= max(_SMALL, _SMALL_TOGETHER // count) and dtype.kind in _NUMBERS:
        return _joined_arrays(values)
    if not all(map(eq, map(_PLACEMENT, values), repeat(_PLACEMENT(first)))):
        return None  # with equal strides, all are contiguous if the first is

    def write(memory: memoryview) -> None:
        if not len(memory):
            return
        block = _on(memory, dtype, (count, *shape))
        if shape:  # three times as fast as numpy.stack, which inspects each array in Python
            numpy.concatenate(values, out=block.reshape(count * shape[0], *shape[1:]), casting="no")
        else:
            numpy.stack(values, out=block, casting="no")

    return Stacked((_code(dtype), shape), first.nbytes * count, write)


def _joined_arrays(values: Sequence[Array]) -> Stacked | None:
    """Small arrays, copied at once: three times as fast as numpy, whose cost for each array is what counts here."""
    first = values[0]
    if len(values) > 1 and not _same_shapes(values):
        return None
    try:
        content = b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # one is not contiguous
        return None

    def write(memory: memoryview) -> None:
        memory[:] = content

    return Stacked((_code(first.dtype), first.shape), len(content), write)


def _same_shapes(values: Sequence[Array]) -> bool:
    first, count = values[0], len(values)
    if first.ndim == 1:  # the lengths are had three times as fast as the shapes
        return [*map(_DIMENSIONS, values)].count(1) == count == [*map(len, values)].count(len(first))
    return [*map(_SHAPE, values)].count(first.shape) == count


def _is_plain(dtype: numpy.dtype[Any]) -> bool:
    """Whether an array's memory determines its values completely."""
    of_another_package = dtype.isbuiltin == 2
    return bool(dtype.itemsize) and not (dtype.hasobject or of_another_package or dtype.metadata)


def _same_dtypes(values: Sequence[Array]) -> bool:
    dtype = values[0].dtype
    return all(map(is_, map(_DTYPE, values), repeat(dtype))) or all(
        other == dtype and not other.metadata for other in map(_DTYPE, values)
    )


def _code(dtype: numpy.dtype[Any]) -> Any:
    """A dtype as a short string from which numpy restores it, if there is one."""
    if dtype.kind in _NUMBERS:
        return dtype.str[0] + dtype.char if dtype.itemsize > 1 else dtype.char  # "q" is not the same type as "l"
    return dtype if dtype.kind == "V" else dtype.str


def _reduce(array: Array) -> Any:
    """An array's reduction; a small one is restored without Python code, three times as fast as numpy's own."""
    dtype = array.dtype
    if not _is_plain(dtype):
        return array.__reduce_ex__(5)
    contiguous = array if array.flags.forc else array.copy()
    # numpy exports no buffer of datetime64, for example, nor of a long double in another byte order.
    exportable = dtype.kind in "biufcSU" and (dtype.isnative or dtype.char not in "gG")
    buffer = PickleBuffer(contiguous if exportable else contiguous.view(f"V{dtype.itemsize}"))  # type: ignore[arg-type]
    order = "C" if contiguous.flags.c_contiguous else "F"
    if array.nbytes >= LARGE:
        return _on, (buffer, dtype, array.shape, order)
    return numpy.ndarray, (array.shape, dtype, buffer, *(() if order == "C" else (0, None, order)))


def _on(memory: memoryview, dtype: Any, shape: tuple[int, ...], order: Literal["C", "F"] = "C") -> Array:
    """An array on a memory, which it keeps alive; ``numpy.ndarray(...)`` would not."""
    if not len(memory):
        return numpy.empty(shape, dtype, order)
    return numpy.frombuffer(memory, dtype).reshape(shape, order=order)


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
