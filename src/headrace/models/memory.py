"""How much memory processes use, and how much there is for them on this machine and in the groups that they are in."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from headrace.models.procfs import lines_of, numbers_are_ours

_SMAPS = Path("/proc/self/smaps_rollup")
_STATM = Path("/proc/self/statm")
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
_NO_LIMIT = 1 << 62
"""Bytes. What control groups of version 1 say where there is none is nearly 2**63."""


class Usage(NamedTuple):
    """The memory of one process, in bytes."""

    pss: int
    """Its own share: pages that it shares with others count in proportion."""
    private: int
    """Of pages that no other process has."""
    shared: int
    """Of pages that others have as well, counted in full."""
    anonymous: int
    """Of pages that are no file's, and so no arena's, counted in full."""


def process_bytes() -> int:
    """Bytes of memory that are this process's own share now.

    On Linux the proportional set size (PSS): pages shared with other processes count in proportion, and unlike the
    peak resident size it falls when memory is freed. Elsewhere the peak resident size, the best that is at hand; on
    Windows nothing is, and it is 0.
    """
    if _SMAPS.exists():
        for line in _SMAPS.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    resource = importlib.import_module("resource")  # which Windows does not have
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Bytes of memory that this process uses, those that it shares with others in full; quick to be had.

    The kernel adds up ``process_bytes`` page by page: that takes milliseconds for each gigabyte. Where the system does
    not tell (anywhere but on Linux), as there.
    """
    fields = "".join(lines_of(_STATM)).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else process_bytes()


def give_back_memory() -> None:
    """Has what is free in this process's heap, after the last garbage is collected, be free for others (glibc)."""
    gc.collect()
    if _malloc_trim is not None:
        _malloc_trim(ctypes.c_size_t(0))


def memory_of(process: int, proc: Path = Path("/proc")) -> Usage | None:
    """What a process uses; None: there is no such process, it is not this user's, or the system does not tell."""
    is_this = process == os.getpid()
    sizes = _sizes(proc / ("self" if is_this else str(process)) / "smaps_rollup")
    if "Pss" not in sizes or not (is_this or numbers_are_ours(proc)):
        return None
    return Usage(
        sizes["Pss"],
        sizes["Private_Clean"] + sizes["Private_Dirty"],
        sizes["Shared_Clean"] + sizes["Shared_Dirty"],
        sizes["Anonymous"],
    )


def memory_limit(proc: Path = Path("/proc")) -> int:
    """Bytes that this process and those that share its control groups may use in all.

    The smallest of the machine's memory and the limits of the process's memory groups, of either version, up to the
    root's.
    """
    return min([_sizes(proc / "meminfo").get("MemTotal") or _physical(), *(group.limit for group in _groups(proc))])


def memory_available(proc: Path = Path("/proc")) -> int:
    """Bytes that can still be allocated; caches that the kernel would give up for it count as free.

    The smallest of what is available on the machine and below the limits of the process's memory groups. Where the
    system does not tell (macOS), all of the machine's memory.
    """
    machine = _sizes(proc / "meminfo").get("MemAvailable")
    return min([_physical() if machine is None else machine, *(group.available() for group in _groups(proc))])


def oom_kills(proc: Path = Path("/proc")) -> int | None:
    """How many processes of this one's memory group the kernel has killed for want of memory; None: it does not tell.

    Groups of version 2 count those of the groups below them, too.
    """
    known = None
    for mount in _mounts(proc):
        folder = mount.folders(_own_path(proc, mount.is_v2))[0]
        count = _figures(folder / ("memory.events" if mount.is_v2 else "memory.oom_control")).get("oom_kill")
        known = count if known is None else known + (count or 0)
    return known


class _ControlGroup(NamedTuple):
    """A control group that limits memory."""

    folder: Path
    limit: int
    """Bytes."""
    is_v2: bool

    def available(self) -> int:
        """Bytes below the limit, at least 0."""
        used = _number(self.folder / ("memory.current" if self.is_v2 else "memory.usage_in_bytes")) or 0
        return max(0, self.limit - max(0, used - self._cache()))

    def _cache(self) -> int:
        """Bytes of files that can be read again: their lists lack what is shared memory (memfd, tmpfs)."""
        prefix = "" if self.is_v2 else "total_"  # with the groups below it
        figures = _figures(self.folder / "memory.stat")
        return figures.get(prefix + "inactive_file", 0) + figures.get(prefix + "active_file", 0)


def _groups(proc: Path) -> Iterator[_ControlGroup]:
    """Those with a limit that this process is in, of either version, up to the root's."""
    for mount in _mounts(proc):
        name = "memory.max" if mount.is_v2 else "memory.limit_in_bytes"
        for folder in mount.folders(_own_path(proc, mount.is_v2)):
            limit = _number(folder / name)
            if limit is not None and limit < _NO_LIMIT:
                yield _ControlGroup(folder, limit, mount.is_v2)


class _Mount(NamedTuple):
    """Where a hierarchy of control groups is seen."""

    root: PurePosixPath
    """What group is at the place: not the root's, in a container."""
    place: Path
    is_v2: bool

    def folders(self, path: PurePosixPath) -> list[Path]:
        """Of the group and those that it is in, as far as they can be seen; the place itself if it cannot."""
        with contextlib.suppress(ValueError):  # it is not below the root: another's view
            path = PurePosixPath("/", path.relative_to(self.root))
        folder = self.place.joinpath(*path.parts[1:])
        if ".." in path.parts or not folder.is_dir():
            return [self.place]
        return [folder, *(above for above in folder.parents if above.is_relative_to(self.place))]


def _mounts(proc: Path) -> Iterator[_Mount]:
    """Those of the hierarchies that may control memory (proc(5), mountinfo)."""
    for line in lines_of(proc / "self" / "mountinfo"):
        fields, _, options = line.partition(" - ")
        kind, _, controllers = options.partition(" ")
        is_v2 = kind == "cgroup2"
        if is_v2 or (kind == "cgroup" and "memory" in controllers.split()[-1].split(",")):
            root, place = (_unescaped(field) for field in fields.split()[3:5])
            yield _Mount(PurePosixPath(root), Path(place), is_v2)


def _own_path(proc: Path, is_v2: bool) -> PurePosixPath:
    """The group of this process in one hierarchy (cgroups(7), /proc/pid/cgroup)."""
    for line in lines_of(proc / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if (number == "0" and not controllers) if is_v2 else "memory" in controllers.split(","):
            return PurePosixPath(path)
    return PurePosixPath("/")


def _unescaped(field: str) -> str:
    r"""A path of mountinfo, in which ``\040`` is a space."""
    for escape in ("\\040", "\\011", "\\012", "\\134"):
        field = field.replace(escape, chr(int(escape[1:], 8)))
    return field


def _sizes(path: Path) -> dict[str, int]:
    """The lines ``Name:  number kB`` of a file of /proc, in bytes."""
    named = (line.split() for line in lines_of(path))
    return {words[0][:-1]: int(words[1]) * 1024 for words in named if words[-1:] == ["kB"] and words[1].isdigit()}


def _figures(path: Path) -> dict[str, int]:
    """The lines ``name number`` of a file."""
    return {name: int(number) for name, number in (line.split() for line in lines_of(path))}


def _number(path: Path) -> int | None:
    """None: there is no such file, or it says ``max``."""
    text = "".join(lines_of(path)).strip()
    return int(text) if text.isdigit() else None


def _physical() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
