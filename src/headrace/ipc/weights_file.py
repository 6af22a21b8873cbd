"""Moves a loaded model into one piece of shared memory, from which any number of processes take it without a copy."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from headrace.core.arrays import NotMappableError
from headrace.core.errors import as_type_name
from headrace.ipc.segment import anonymous_file
from headrace.ipc.serialization import Pickled, all_exporters, measured, pickled

__all__ = ["NotMappableError", "WeightsFile", "attach", "export"]

_CHUNK = 1 << 24
"""Bytes that are copied before their source is given back; a multiple of every page's size, huge ones included."""
_FEW_OBJECTS = 50_000_000
"""Bytes of pickle that every process may be asked to load, whatever the model's size."""
_MODEST_SHARE = 0.1
"""Of the whole: how much of a model that is not memory may be pickle."""

_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


class WeightsFile(NamedTuple):
    """What is needed, besides the file, to make the value that was exported; small."""

    head: bytes
    """The pickle, without the large buffers."""
    places: list[tuple[int, int]]
    """Where in the file each buffer begins, and its size, in bytes.

    A beginning is a multiple of the page's size, save where buffers overlap.
    """
    nbytes: int
    """Of the file."""


def export(value: Any) -> tuple[int, WeightsFile]:
    """Moves a value into shared memory.

    This takes the value's memory apart: its large buffers are given back to the system one after the other as they are
    copied, so that both together never take much more than the value did. Use it no more, and nothing that shares
    memory with it; best, end the process.

    Args:
        value: anything that pickles.

    Returns:
        A file descriptor, and its description for ``attach``. The file has no name; where the system can see to it,
        nobody can change it any more.

    Raises:
        NotMappableError: it cannot be done; the value is as it was.
        OSError: the system failed in the middle; the value is lost.
    """
    pickle_ = _pickled(value)
    regions, places = _arranged(pickle_.buffers)
    size = regions[-1].offset + regions[-1].size if regions else 0
    head = b"".join(pickle_.pieces)
    file = _new_file(size)
    try:
        for region in regions:
            _move(region, file)
        _seal(file)
    except BaseException:
        os.close(file)
        raise
    return file, WeightsFile(head, places, size)


def attach(file: int, arena: WeightsFile) -> Any:
    """The value that was exported, with its large buffers in the shared memory.

    They can be written to: what is written is this value's own, and no other process, nor a value attached again, sees
    it. The memory stays mapped for as long as anything refers to it.

    Args:
        file: remains open, and is not needed any more afterwards.
        arena: what ``export`` returned beside it.

    Raises:
        Exception: what unpickling raises. There are classes whose objects pickle but do not unpickle.
    """
    memory = memoryview(mmap.mmap(file, arena.nbytes, access=mmap.ACCESS_COPY) if arena.nbytes else b"")
    return pickle.loads(arena.head, buffers=[memory[start : start + size] for start, size in arena.places])


def _pickled(value: Any) -> Pickled:
    exporters = all_exporters()
    try:
        _check_share(*measured(value, exporters))  # lest memory be taken for a pickle that is of no use
        return pickled(value, exporters)
    except NotMappableError:
        raise
    except Exception as error:
        raise NotMappableError(f"it does not pickle ({as_type_name(error)}: {error})") from error


def _check_share(objects: int, buffers: int) -> None:
    if objects > _FEW_OBJECTS and objects > _MODEST_SHARE * (objects + buffers):
        megabytes = f"{objects / 1e6:.0f} of its {(objects + buffers) / 1e6:.0f} MB"
        raise NotMappableError(f"{megabytes} are Python objects, which every process would copy")


class _Region(NamedTuple):
    """Memory that goes into the file."""

    address: int
    size: int
    offset: int
    """In the file."""


def _arranged(buffers: Sequence[memoryview]) -> tuple[list[_Region], list[tuple[int, int]]]:
    """What to copy, in the order of the file, and where each buffer is then. What overlaps is one region."""
    spans = [(_address(buffer), buffer.nbytes) for buffer in buffers]
    united = list(_united(spans))
    offsets = accumulate((_whole_pages(size) for _, size in united), initial=0)
    regions = [_Region(*span, offset) for span, offset in zip(united, offsets, strict=False)]
    places, remaining = {}, iter(regions)
    region = None
    for address, size in sorted(set(spans)):
        while region is None or address >= region.address + region.size:
            region = next(remaining)
        places[address, size] = (region.offset + address - region.address, size)
    return regions, [places[span] for span in spans]


def _united(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Addresses and sizes, by address, such that none overlap."""
    start = end = 0
    for address, size in sorted(spans):
        if address >= end:
            if end > start:
                yield start, end - start
            start = address
        end = max(end, address + size)
    if end > start:
        yield start, end - start


def _whole_pages(size: int) -> int:
    return size + -size % mmap.PAGESIZE


class _PyBuffer(ctypes.Structure):
    """Python's ``Py_buffer``."""

    _fields_ = (
        *(("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t)),
        *(("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int)),
        *(("format", ctypes.c_void_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p)),
        *(("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)),
    )


def _address(memory: memoryview) -> int:
    """Where it lies; ctypes itself tells only of what can be written to."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(buffer), 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return int(buffer.buf)


def _new_file(size: int) -> int:
    """An anonymous file of that many bytes, that can be sealed if there is such a thing."""
    file = -1
    try:
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("headrace-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            file = anonymous_file("headrace-arena")
        os.ftruncate(file, size)
    except OSError as error:
        if file >= 0:
            os.close(file)
        raise NotMappableError(f"the system gives no shared memory of {size / 1e6:.0f} MB ({error})") from error
    return file


def _move(region: _Region, file: int) -> None:
    """Copies memory into the file, and gives it back meanwhile."""
    start, end = region.address, region.address + region.size
    shift = region.offset - region.address
    while start < end:
        stop = min(end, start - start % _CHUNK + _CHUNK)
        _write(file, memoryview((ctypes.c_char * (stop - start)).from_address(start)).cast("B"), start + shift)
        _give_back(start, stop)
        start = stop


def _write(file: int, memory: memoryview, offset: int) -> None:
    while memory:
        count = os.pwrite(file, memory, offset)
        memory, offset = memory[count:], offset + count


def _give_back(start: int, end: int) -> None:
    """Frees the pages that lie wholly between two addresses (Linux only); they read as zeros, or as their file does.

    Other processes keep what they share with this one, such as a parent or a mapped file's other users. Where the
    system will not have it, as with memory that is locked, nothing happens.
    """
    first, last = _whole_pages(start), end - end % mmap.PAGESIZE
    if _madvise is not None and first < last:
        _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _seal(file: int) -> None:
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        size = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, size | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
