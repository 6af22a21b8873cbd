"""How much memory processes use, and may use; and what keeps garbage collections of large heaps rare."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_STATM = Path("/proc/self/statm")
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
_lock = threading.Lock()
_frozen_at_start = gc.get_freeze_count()  # some versions of Python freeze a few objects themselves
_holders = 0
_frozen_by_us = False
_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 62
"""Bytes. Without a limit, control groups of version 1 report nearly 2**63."""


class Usage(NamedTuple):
    """The memory of one process, in bytes."""

    pss: int
    """Proportional set size: pages shared with other processes count in proportion."""
    private: int
    """Pages of this process alone."""
    shared: int
    """Pages shared with other processes, counted in full."""
    anonymous: int
    """Pages of no file, so of no weights file either, counted in full."""


def peak_bytes() -> int | None:
    """Peak resident memory of this process in bytes, shared memory included; None on Windows."""
    try:
        resource = importlib.import_module("resource")  # Windows does not have it
    except ImportError:
        return None
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Resident memory of this process, in bytes, with shared pages counted in full; fast.

    Where there is no /proc, its peak, the best available; on Windows 0.
    """
    fields = "".join(lines_of(_STATM)).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else peak_bytes() or 0


def trim_memory() -> None:
    """Collects garbage and returns free heap memory to the system (the latter with glibc only)."""
    gc.collect()
    if _malloc_trim is not None:
        _malloc_trim(ctypes.c_size_t(0))


def memory_of(process: int, proc: Path = Path("/proc")) -> Usage | None:
    """Memory of a process; None: it does not exist, belongs to another user, or the system does not report it."""
    is_this = process == os.getpid()
    sizes = _figures(proc / ("self" if is_this else str(process)) / "smaps_rollup")
    if "Pss" not in sizes or not (is_this or pids_are_local(proc)):
        return None
    return Usage(
        sizes["Pss"],
        sizes["Private_Clean"] + sizes["Private_Dirty"],
        sizes["Shared_Clean"] + sizes["Shared_Dirty"],
        sizes["Anonymous"],
    )


def memory_limit(proc: Path = Path("/proc"), groups: Path = _GROUPS) -> int:
    """Bytes that this process and the others in its control groups may use together.

    The minimum of the machine's memory and the limits of the process's memory groups (version 1 or 2) up to the root.
    """
    machine = _figures(proc / "meminfo").get("MemTotal") or _physical()
    return min([machine, *(limit for limit, _ in _limits(proc, groups))])


def memory_available(proc: Path = Path("/proc"), groups: Path = _GROUPS) -> int:
    """Bytes that can still be allocated; caches that the kernel can reclaim count as free.

    The minimum of what is available on the machine and in each of the process's memory groups. Where the system does
    not report it (macOS), all of the machine's memory.
    """
    machine = _figures(proc / "meminfo").get("MemAvailable")
    return min([_physical() if machine is None else machine, *(free for _, free in _limits(proc, groups))])


def oom_kills(proc: Path = Path("/proc"), groups: Path = _GROUPS) -> int | None:
    """How many processes in this process's memory group the kernel has killed for lack of memory; None: unknown.

    Groups of version 2 include the groups below them.
    """
    for folder, is_v2 in _memory_groups(proc, groups):
        count = _figures(folder / ("memory.events" if is_v2 else "memory.oom_control")).get("oom_kill")
        if count is not None:
            return count
    return None


def _memory_groups(proc: Path, groups: Path) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's memory group and those around it, innermost first; whether they are of version 2.

    A container sees its own group at the top.
    """
    for line in lines_of(proc / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        is_v2 = number == "0" and not controllers
        if is_v2 or "memory" in controllers.split(","):
            top = groups if is_v2 else groups / "memory"
            own = top / path.lstrip("/") if ".." not in path else top
            yield from ((folder, is_v2) for folder in (own, *own.parents) if folder.is_relative_to(top))


def _limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """The limit of each memory group that has one, and what is left of it, in bytes.

    Reclaimable page cache counts as left; the lists of files do not include shared memory (memfd, tmpfs).
    """
    for folder, is_v2 in _memory_groups(proc, groups):
        limit = _number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        if limit is not None and limit < _NO_LIMIT:
            used = _number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")) or 0
            prefix = "" if is_v2 else "total_"  # includes the groups below
            figures = _figures(folder / "memory.stat")
            cache = figures.get(f"{prefix}inactive_file", 0) + figures.get(f"{prefix}active_file", 0)
            yield limit, max(0, limit - max(0, used - cache))


def _figures(path: Path) -> dict[str, int]:
    """The named numbers of a file of the kernel's, one in each line; those in kB as bytes."""
    named = [words for line in lines_of(path) if len(words := line.split()) > 1 and words[1].isdigit()]
    return {words[0].rstrip(":"): int(words[1]) * (1024 if words[-1] == "kB" else 1) for words in named}


def _number(path: Path) -> int | None:
    """The number in a file; None: there is no such file, or it says ``max``."""
    text = "".join(lines_of(path)).strip()
    return int(text) if text.isdigit() else None


def _physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def pids_are_local(proc: Path = Path("/proc")) -> bool:
    """Whether process ids in /proc mean the same processes as in this process's PID namespace (False except on Linux).

    If /proc was mounted in another PID namespace, its numbers mean other processes here.
    """
    status = lines_of(proc / "self" / "status")
    # NSpid lists this process's id in each namespace, from that of /proc inwards.
    return [str(os.getpid())] in (line.split()[1:] for line in status if line.startswith("NSpid:"))


def lines_of(path: Path) -> list[str]:
    """Lines of a file; empty if the file or its process does not exist, or this user may not read it."""
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def hold_heap() -> None:
    """Freezes all objects that exist now; call it before a model loads, and ``release_heap`` once for each call.

    Beam and a framework are a million objects. Each full collection visits them all (0.2 s), and a few batches with
    some thousand results trigger one. A heap that somebody else has frozen is left alone.
    """
    global _holders, _frozen_by_us  # noqa: PLW0603 - the heap belongs to the process
    with _lock:
        if _holders == 0 and gc.get_freeze_count() <= _frozen_at_start:
            gc.freeze()
            _frozen_by_us = True
        _holders += 1


def release_heap() -> None:
    """Unfreezes the heap at the last release."""
    global _holders, _frozen_by_us  # noqa: PLW0603 - as above
    with _lock:
        _holders -= 1
        if _holders == 0 and _frozen_by_us:
            gc.unfreeze()
            _frozen_by_us = False
