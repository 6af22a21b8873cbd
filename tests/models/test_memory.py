"""Memory figures: what a process uses now, and what the tightest of its control groups allows."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.models.memory import (
    memory_available,
    memory_limit,
    memory_of,
    oom_kills,
    peak_bytes,
    resident_bytes,
)

MEBIBYTE = 1 << 20


def test_process_memory_grows_with_allocations_and_falls_when_they_are_freed():
    before, size = resident_bytes(), 64 * MEBIBYTE
    held = bytearray(b"x") * size
    grown = resident_bytes() - before
    assert grown == pytest.approx(size, rel=0.25)
    del held
    if sys.platform == "linux":
        assert resident_bytes() - before < size / 2


GIGABYTE = 10**9
UNLIMITED_V1 = 9223372036854771712
PHYSICAL = 16_000_000 * 1024


def test_process_memory_is_read_from_proc():
    usage = memory_of(os.getpid())
    assert usage.pss <= resident_bytes() <= peak_bytes()
    assert usage.private <= usage.pss <= usage.private + usage.shared


def test_pages_mapped_by_two_processes_are_shared():
    code = "import mmap, sys; m = mmap.mmap(int(sys.argv[1]), 0); sum(m[::4096]); print(flush=True); input()"
    file = os.memfd_create("test")
    os.truncate(file, 64 * MEBIBYTE)
    with mmap.mmap(file, 0) as memory:
        memory.write(b"x" * len(memory))
        before = memory_of(os.getpid())
        command = [sys.executable, "-c", code, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file]) as other:
            other.stdout.readline()
            alone, theirs = memory_of(os.getpid()), memory_of(other.pid)
    os.close(file)
    assert before.pss - alone.pss == pytest.approx(32 * MEBIBYTE, rel=0.25)
    assert before.private - alone.private == pytest.approx(64 * MEBIBYTE, rel=0.25)
    assert theirs.shared > 64 * MEBIBYTE > theirs.private


class Machine:
    """A fake /proc, and the control groups that it names."""

    def __init__(self, folder):
        self.proc = folder / "proc"
        self.groups = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text("MemTotal:  16000000 kB\nMemFree: 1 kB\nMemAvailable:   9000000 kB\n")

    def is_in(self, line):
        with (self.proc / "self" / "cgroup").open("a") as file:
            file.write(line + "\n")

    def group(self, path, **files):
        (self.groups / path).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (self.groups / path / name.replace("__", ".")).write_text(f"{content}\n")

    def v1(self, path, limit, used=0, inactive=0, active=0):
        stat = f"cache {9 * GIGABYTE}\nshmem {8 * GIGABYTE}\ninactive_file 1\nactive_file 1\n"
        stat += f"total_inactive_file {inactive}\ntotal_active_file {active}"
        self.group(path, memory__limit_in_bytes=limit, memory__usage_in_bytes=used, memory__stat=stat)

    def v2(self, path, limit, used=0, inactive=0, active=0):
        stat = f"file {9 * GIGABYTE}\nshmem {8 * GIGABYTE}\ninactive_file {inactive}\nactive_file {active}"
        self.group(path, memory__max=limit, memory__current=used, memory__stat=stat)

    def figures(self):
        return memory_limit(self.proc, self.groups), memory_available(self.proc, self.groups)

    def kills(self):
        return oom_kills(self.proc, self.groups)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture(params=["v1", "v2"])
def grouped(machine, request):
    """A machine, and what sets the figures of its process's memory group, or of one around it."""
    if request.param == "v2":
        machine.is_in("0::/jobs/one")
        machine.group("", memory__stat="inactive_file 5")  # the root's has no limit
        return machine, machine.v2
    for line in ("5:devices:/elsewhere", "4:cpu,memory:/jobs/one", "0::/"):
        machine.is_in(line)
    machine.v1("memory", UNLIMITED_V1, used=3)
    return machine, lambda path, limit, **used: machine.v1(
        f"memory/{path}", UNLIMITED_V1 if limit == "max" else limit, **used
    )


@pytest.mark.parametrize("limit", ["max", 64 * GIGABYTE])
def test_a_group_without_a_limit_within_the_machine_s_memory(grouped, limit):
    machine, make = grouped
    assert machine.figures() == (PHYSICAL, 9_000_000 * 1024)
    make("jobs/one", limit, used=15 * GIGABYTE if limit == "max" else 0)
    assert machine.figures() == (PHYSICAL, 9_000_000 * 1024)


def test_page_cache_counts_as_free_and_shared_memory_as_used(grouped):
    machine, make = grouped
    make("jobs/one", 4 * GIGABYTE, used=3 * GIGABYTE, inactive=5, active=7)
    assert machine.figures() == (4 * GIGABYTE, GIGABYTE + 12)


def test_the_tightest_enclosing_group_decides(grouped):
    machine, make = grouped
    make("jobs", 4 * GIGABYTE, used=3 * GIGABYTE)
    make("jobs/one", 6 * GIGABYTE, used=2 * GIGABYTE)
    make("jobs/two", 1, used=1)  # not among them
    assert machine.figures() == (4 * GIGABYTE, GIGABYTE)
    make("jobs/one", 5 * GIGABYTE, used=5 * GIGABYTE + 1)
    assert machine.figures() == (4 * GIGABYTE, 0)
    make("jobs/one", 2 * GIGABYTE, used=GIGABYTE + 1)
    assert machine.figures() == (2 * GIGABYTE, GIGABYTE - 1)


@pytest.mark.parametrize(("line", "place"), [("4:memory:/docker/abc", "memory"), ("0::/", ""), ("0::/../other", "")])
def test_a_container_sees_its_own_group_at_the_top(machine, line, place):
    machine.is_in(line)
    (machine.v1 if place else machine.v2)(place, 2 * GIGABYTE, used=GIGABYTE)
    assert machine.figures() == (2 * GIGABYTE, GIGABYTE)


def test_memory_figures_may_be_unknown(tmp_path):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_limit(tmp_path, tmp_path) == memory_available(tmp_path, tmp_path) == physical
    assert memory_of(os.getpid(), tmp_path) is memory_of(2**30) is None
    assert oom_kills(tmp_path, tmp_path) is None


@pytest.mark.parametrize("count", [3, None])  # none before Linux 4.13
def test_out_of_memory_kills_are_counted(grouped, count):
    machine, _ = grouped
    is_v1 = (machine.groups / "memory").exists()
    name, place = ("memory__oom_control", "memory/jobs") if is_v1 else ("memory__events", "jobs")
    kills = "" if count is None else f"oom_kill {count}"
    machine.group(f"{place}/one", **{name: f"under_oom 0\noom 4\n{kills}".strip()})
    machine.group(place, **{name: "oom_kill 70" if count else "oom 1"})
    assert machine.kills() == count


def test_other_processes_are_unknown_if_proc_is_of_another_namespace(tmp_path):
    content = Path("/proc/self/smaps_rollup").read_text()
    for name in ("1", "self"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "smaps_rollup").write_text(content)
    (tmp_path / "self/status").write_text(f"NSpid:\t900\t{os.getpid()}\n")
    assert memory_of(os.getpid(), tmp_path) is not None
    assert memory_of(1, tmp_path) is None
