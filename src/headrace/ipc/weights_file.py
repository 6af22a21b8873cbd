"""Moves a loaded model into one shared memory file, which any number of processes map without copying."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import pickle
import stat
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.arrays import NotMappableError, Span
from headrace.core.errors import as_type_name
from headrace.ipc.segment import anonymous_file
from headrace.ipc.serialization import Pickled, Reducers, all_exporters, codecs, pickled

__all__ = ["MOST_FILES", "NotMappableError", "WeightsLayout", "attach", "export"]

MOST_FILES = 5
"""The weights file and four others: a message carries at most eight descriptors, and others come along."""
_CHUNK = 1 << 24
"""Bytes copied before their source is freed; a multiple of every page size, huge pages included."""
_FEW_OBJECTS = 50_000_000
"""Bytes of pickle (each process loads its own) that are acceptable for a model of any size."""
_MODEST_SHARE = 0.1
"""Above that, the largest fraction of a model's bytes that may be pickle rather than buffers."""
_SMALLEST_PART = 1 << 20
"""Bytes of a file's buffers together from which it pays to map the file."""
_ENTRY = 8
"""Bytes of a page's entry in /proc/PID/pagemap."""
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
"""Flags in an entry's highest byte; of the others, some say how the page is mapped elsewhere."""
_MAPS, _PAGEMAP = Path("/proc/self/maps"), Path("/proc/self/pagemap")
_ALL_SEALS = 0b1111
"""Those against shrinking, growing, writing and further seals (fcntl(2))."""

_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


class Place(NamedTuple):
    """Where a buffer is, in bytes; in the weights file it is page-aligned, except where buffers overlap."""

    file: int
    """0: the weights file; from 1 on: the other files."""
    offset: int
    """From the start of the weights file or, in another file, from the start of the mapped part."""
    size: int


class WeightsLayout(NamedTuple):
    """The small description that, with the file, restores the exported value."""

    head: bytes
    """The pickle, without its large buffers."""
    places: list[Place]
    """Where each buffer is."""
    nbytes: int
    """Size of the weights file, in bytes."""
    others: Sequence[Span] = ()
    """Offset and size, in bytes, of what to map of each other file."""

    @property
    def file_bytes(self) -> int:
        """Bytes that are mapped of other files."""
        return sum(size for _, size in self.others)


def export(value: Any, *, destroys: bool, moves: bool = True) -> tuple[list[int], WeightsLayout]:
    """Copies a value into shared memory, but for buffers that are mapped from files, as PyTorch's of safetensors.

    Args:
        value: anything that pickles.
        destroys: whether each large buffer is freed while it is copied, so that the peak is little more than the value;
            afterwards, do not use the value or anything that shares memory with it; best, end the process.
        moves: whether arrays that are not destroyed move onto their copy where their framework can do so (PyTorch), so
            that their own memory is freed unless something else uses it. No thread may be computing with them.

    Returns:
        Descriptors of the weights file, which on Linux nobody can change any more, and of at most ``MOST_FILES - 1``
        others; and their description for ``attach``.

    Raises:
        NotMappableError: the value cannot be exported; it is unchanged.
        OSError: copying failed half-way; if it ``destroys``, the value is lost.
    """
    movable: list[Any] = []
    head, buffers = _pickled(value, _noting(movable) if moves and not destroys else all_exporters())
    spans = [(_address(buffer), buffer.nbytes) for buffer in buffers]
    with ExitStack() as opened:
        mapped = _mapped_parts(spans, opened)
        places = {span: place for part in mapped for span, place in part.places.items()}
        regions = _regions(span for span in spans if span not in places)
        places |= {span: Place(0, *place) for region in regions for span, place in region.places.items()}
        size = _size(regions)
        try:
            file = anonymous_file("headrace-arena", size)
        except OSError as error:
            raise NotMappableError(f"the system gives no shared memory of {size / 1e6:.0f} MB ({error})") from error
        opened.callback(os.close, file)
        if destroys:
            for region in regions:
                _move(region, file)
        else:
            held = dict(zip(spans, buffers, strict=True))
            buffers.clear()
            _copy(regions, held, _movers(movable), file, size)
        if sys.platform == "linux" and hasattr(os, "memfd_create"):
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _ALL_SEALS)
        opened.pop_all()
    layout = WeightsLayout(b"".join(head), [places[span] for span in spans], size, [part.part for part in mapped])
    return [file, *(part.file for part in mapped)], layout


def attach(files: Sequence[int], layout: WeightsLayout) -> Any:
    """Restores an exported value, with its large buffers mapped from the files.

    The mappings are copy-on-write: writes are private to this value. They last as long as anything refers to them.

    Args:
        files: the weights file and the others; not closed, and not needed afterwards.
        layout: the description that ``export`` returned.

    Raises:
        Exception: unpickling fails; some classes pickle but do not unpickle.
    """
    parts = [(0, layout.nbytes), *layout.others]
    memories = [_mapped(file, size, offset) for file, (offset, size) in zip(files, parts, strict=True)]
    buffers = [memories[file][start : start + size] for file, start, size in layout.places]
    return pickle.loads(layout.head, buffers=buffers)


def _mapped(file: int, size: int, offset: int = 0) -> memoryview:
    return memoryview(mmap.mmap(file, size, access=mmap.ACCESS_COPY, offset=offset) if size else b"")


class _MappedPart(NamedTuple):
    """Which part of a file to map instead of copying the buffers in it."""

    file: int
    part: Span
    """Offset and size, in bytes."""
    places: dict[Span, Place]


class _Mapping(NamedTuple):
    """A private mapping of a file into this process."""

    start: int
    end: int
    offset: int
    """In the file, of ``start``."""
    device: int
    inode: int
    path: str


def _mapped_parts(spans: Sequence[Span], opened: ExitStack) -> list[_MappedPart]:
    """Opens the files that hold buffers, the largest shares first, where nobody has changed the (private) mapping."""
    found: dict[_Mapping, list[Span]] = defaultdict(list)
    mappings = sorted(_mappings()) if (sys.platform, sys.byteorder) == ("linux", "little") else []
    starts = [mapping.start for mapping in mappings]
    for span in set(spans):
        mapping = mappings[bisect_right(starts, span[0]) - 1] if starts else None
        if mapping is not None and mapping.start <= span[0] and sum(span) <= mapping.end:
            found[mapping].append(span)
    parts: list[_MappedPart] = []
    for nbytes, mapping in sorted(((sum(size for _, size in found[one]), one) for one in found), reverse=True):
        is_worth_it = len(parts) < MOST_FILES - 1 and nbytes >= _SMALLEST_PART and _is_unchanged(mapping)
        if is_worth_it and (file := _opened(mapping)) is not None:
            opened.callback(os.close, file)
            size = min(mapping.end - mapping.start, os.fstat(file).st_size - mapping.offset)
            places = {span: Place(len(parts) + 1, span[0] - mapping.start, span[1]) for span in found[mapping]}
            parts.append(_MappedPart(file, (mapping.offset, size), places))
    return parts


def _mappings() -> Iterator[_Mapping]:
    """This process's private mappings of files that have a path (proc(5), maps)."""
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        span, rights, offset, device, inode, *path = line.split(maxsplit=5)
        if rights.endswith("p") and rights.startswith("r") and path and path[0].startswith("/") and inode != "0":
            start, end = (int(one, 16) for one in span.split("-"))
            major, minor = (int(one, 16) for one in device.split(":"))
            yield _Mapping(start, end, int(offset, 16), os.makedev(major, minor), int(inode), path[0])


def _is_unchanged(mapping: _Mapping) -> bool:
    """Whether this process has written to no page of a mapping: then all pages are still the file's."""
    pages = (mapping.end - mapping.start) // mmap.PAGESIZE
    try:
        with _PAGEMAP.open("rb", buffering=0) as file:
            file.seek(mapping.start // mmap.PAGESIZE * _ENTRY)
            entries = file.read(pages * _ENTRY)
    except OSError:
        return False
    flags = {byte & (_PRESENT | _SWAPPED | _OF_FILE) for byte in set(entries[_ENTRY - 1 :: _ENTRY])}
    return len(entries) == pages * _ENTRY and flags <= {0, _PRESENT | _OF_FILE}


def _opened(mapping: _Mapping) -> int | None:
    """The mapping's file, if that is what its path still names."""
    try:
        file = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) == (mapping.device, mapping.inode):
        return file
    os.close(file)
    return None


def _pickled(value: Any, exporters: Reducers) -> Pickled:
    try:
        made = pickled(value, exporters)
    except NotMappableError:
        raise
    except Exception as error:
        raise NotMappableError(f"it does not pickle ({as_type_name(error)}: {error})") from error
    objects, buffers = sum(map(len, made.pieces)), sum(one.nbytes for one in made.buffers)
    if objects > _FEW_OBJECTS and objects > _MODEST_SHARE * (objects + buffers):
        megabytes = f"{objects / 1e6:.0f} of its {(objects + buffers) / 1e6:.0f} MB"
        raise NotMappableError(f"{megabytes} are Python objects, which every process would copy")
    return made


@dataclass
class _Region:
    """A stretch of memory to copy into the file; overlapping buffers form one."""

    start: int
    end: int
    offset: int
    """Offset in the file, in bytes."""
    places: dict[Span, tuple[int, int]]
    """Offset in the file and size of each buffer, in bytes."""


def _regions(spans: Iterable[Span]) -> list[_Region]:
    """The regions to copy, in file order."""
    regions: list[_Region] = []
    for address, size in sorted(set(spans)):
        if not regions or address >= regions[-1].end:
            regions.append(_Region(address, address, _whole_pages(_size(regions)), {}))
        last = regions[-1]
        last.end = max(last.end, address + size)
        last.places[address, size] = (last.offset + address - last.start, size)
    return regions


def _size(regions: Sequence[_Region]) -> int:
    """How many bytes of the file they take."""
    return regions[-1].offset + regions[-1].end - regions[-1].start if regions else 0


def _whole_pages(size: int) -> int:
    return size + -size % mmap.PAGESIZE


def _address(memory: memoryview) -> int:
    """The memory's address; ctypes' own ``from_buffer`` refuses read-only memory."""
    buffer = (ctypes.c_void_p * 16)()  # more than a Py_buffer, whose first field is the address
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(buffer), 0)
    address = buffer[0]
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address or 0


def _move(region: _Region, file: int) -> None:
    """Copies a region into the file, and frees it chunk by chunk on the way."""
    start = region.start
    while start < region.end:
        stop = min(region.end, start - start % _CHUNK + _CHUNK)
        _write(file, _memory(start, stop), region.offset + start - region.start)
        _give_back(start, stop)
        start = stop


def _noting(movable: list[Any]) -> Reducers:
    """All exporters; they append to ``movable`` each array that its framework can move."""

    def noted(exporter: Callable[[Any], Any], array: Any) -> Any:
        movable.append(array)
        return exporter(array)

    exporters = all_exporters()
    return {**exporters, **{kind: partial(noted, exporters[kind]) for codec in codecs() for kind in codec.movable}}


def _movers(arrays: list[Any]) -> dict[Span, Callable[[memoryview], None]]:
    """What moves the arrays, by their memory; empties the list, so that only that memory's other users keep it."""
    movers: dict[Span, Callable[[memoryview], None]] = {}
    for codec in codecs():
        movers |= codec.movers([array for array in arrays if type(array) in codec.movable])
    arrays.clear()
    return movers


def _copy(
    regions: Sequence[_Region],
    buffers: dict[Span, memoryview],
    movers: Mapping[Span, Callable[[memoryview], None]],
    file: int,
    size: int,
) -> None:
    """Copies regions into the file, and moves arrays onto the copy of each at once; lets go of its buffers."""
    copies = _mapped(file, size)
    for region in regions:
        _write(file, _memory(region.start, region.end), region.offset)
        for span, (start, length) in region.places.items():
            del buffers[span]
            if span in movers:
                movers[span](copies[start : start + length])


def _memory(start: int, end: int) -> memoryview:
    """The bytes between two addresses."""
    return memoryview((ctypes.c_char * (end - start)).from_address(start)).cast("B")


def _write(file: int, memory: memoryview, offset: int) -> None:
    while memory:
        count = os.pwrite(file, memory, offset)
        memory, offset = memory[count:], offset + count


def _give_back(start: int, end: int) -> None:
    """Frees the whole pages between two addresses (Linux only); afterwards they read as zeros, or as their mapped file.

    Other processes that share these pages (a parent, users of the same mapped file) keep them. If the kernel refuses,
    as it does for locked memory, nothing happens.
    """
    first, last = _whole_pages(start), end - end % mmap.PAGESIZE
    if _madvise is not None and first < last:
        _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
