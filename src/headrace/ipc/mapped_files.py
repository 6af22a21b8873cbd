"""Finds buffers that a framework has mapped from files on disk, and which other processes may map as well."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from headrace.core.arrays import Span

_SMALLEST = 1 << 20
"""Bytes of a file's buffers together from which it pays to map the file."""
_ENTRY = 8
"""Bytes of a page's entry in /proc/PID/pagemap."""
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
"""Flags in an entry's highest byte; of the others, some say how the page is mapped elsewhere."""
_MAPS, _PAGEMAP = Path("/proc/self/maps"), Path("/proc/self/pagemap")


class MappedPart(NamedTuple):
    """Which part of a file to map."""

    file: int
    """Its descriptor."""
    part: Span
    """Offset and size, in bytes."""
    places: list[tuple[Span, int, int]]
    """Each buffer in it, by its address and size; its offset in the part, and size."""


class _Mapping(NamedTuple):
    """A private mapping of a file into this process."""

    start: int
    end: int
    offset: int
    """In the file, of ``start``."""
    device: int
    inode: int
    path: str


def mapped_files(spans: Sequence[Span], most: int, opened: ExitStack) -> list[MappedPart]:
    """Opens the files that hold buffers, where the buffers are private mappings that nobody has changed.

    Args:
        spans: address and size of each buffer, in bytes.
        most: files at most; the largest shares of the buffers win.
        opened: closes the files.
    """
    found: dict[_Mapping, list[Span]] = defaultdict(list)
    mappings = sorted(_mappings()) if (sys.platform, sys.byteorder) == ("linux", "little") else []
    starts = [mapping.start for mapping in mappings]
    for span in set(spans):
        mapping = mappings[bisect_right(starts, span[0]) - 1] if starts else None
        if mapping is not None and mapping.start <= span[0] and sum(span) <= mapping.end:
            found[mapping].append(span)
    parts: list[MappedPart] = []
    for mapping, within in sorted(found.items(), key=lambda item: -_bytes(item[1])):
        is_worth_it = len(parts) < most and _bytes(within) >= _SMALLEST and _is_unchanged(mapping)
        if is_worth_it and (file := _opened(mapping)) is not None:
            opened.callback(os.close, file)
            size = min(mapping.end - mapping.start, os.fstat(file).st_size - mapping.offset)
            places = [(span, span[0] - mapping.start, span[1]) for span in within]
            parts.append(MappedPart(file, (mapping.offset, size), places))
    return parts


def _bytes(spans: Sequence[Span]) -> int:
    return sum(size for _, size in spans)


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
