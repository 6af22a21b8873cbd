"""Values that were moved into shared memory: what comes back, what others see, what it costs, and what goes wrong."""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import resource
import subprocess
import sys
import threading
from functools import partial

import numpy
import pytest

from headrace.ipc import weights_file
from headrace.ipc.weights_file import MOST_FILES, NotMappableError, attach, export

MB = 1 << 20

ELSEWHERE = """
import pickle, sys
import numpy
from headrace.ipc.weights_file import attach
value = attach(list(map(int, sys.argv[1].split(","))), pickle.load(sys.stdin.buffer))
print(eval(sys.argv[2]))
"""


@pytest.fixture
def exported(close_later):
    """Moves values, which are destroyed unless they stay in use; closes their files when the test ends."""

    def move(value, destroys=True):
        files, layout = export(value, destroys=destroys)
        for file in files:
            close_later(os.fdopen(file, "rb", buffering=0))
        return files, layout

    return move


@pytest.fixture(params=[True, False], ids=["destroyed", "in use"])
def moved(exported, request):
    return partial(exported, destroys=request.param)


def elsewhere(expression, files, layout):
    command = [sys.executable, "-c", ELSEWHERE, ",".join(map(str, files)), expression]
    options = {"input": pickle.dumps(layout), "capture_output": True, "pass_fds": files}
    return subprocess.run(command, **options, check=True).stdout.decode().strip()


def numbers(count=10_000):
    return numpy.arange(float(count))


def test_writes_of_one_process_are_seen_by_no_other(exported):
    files, layout = exported([numbers()])
    mine, also_mine = attach(files, layout), attach(files, layout)
    mine[0][:] = -1
    assert elsewhere("value[0].fill(7) or value[0].max()", files, layout) == "7.0"
    assert elsewhere("int(value[0].min()), int(value[0].max())", files, layout) == "(0, 9999)"
    assert also_mine[0].tolist() == numbers().tolist() == attach(files, layout)[0].tolist()
    assert set(mine[0]) == {-1}


def test_buffers_begin_at_pages(exported):
    _, layout = exported([numbers(1000), numbers(513), numpy.ones(9001, "u1"), numbers(512)])
    assert [place.offset % mmap.PAGESIZE for place in layout.places] == [0] * 4


def test_shared_memory_is_stored_once_and_stays_shared(exported):
    whole = numbers(100_000)
    files, layout = exported({"whole": whole, "part": whole[10_000:20_000], "again": [whole, whole]})
    assert layout.nbytes == whole.nbytes
    value = attach(files, layout)
    value["whole"][10_000] = 5
    assert value["part"][0] == 5
    assert value["again"][0] is value["again"][1] is value["whole"]


def test_neighbours_do_not_lose_their_edges(exported):
    """Only pages that belong to nobody else are given back while the rest is still to be copied."""
    memory = bytearray(b"\1" * (3 << 20))
    parts = [numpy.frombuffer(memory, "u1")[start : start + 150_001] for start in range(5, 3 << 20, 200_003)]
    between = [memory[start] for start in range(150_006, 3 << 20, 200_003)]
    files, layout = exported(parts)
    assert all(set(part.tolist()) == {1} for part in attach(files, layout))
    assert [memory[start] for start in range(150_006, 3 << 20, 200_003)] == between == [1] * len(between)


def test_the_file_cannot_be_changed(exported):
    (file,), _ = exported(numbers())
    with pytest.raises(PermissionError):
        os.pwrite(file, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file, 1 << 20)
    with pytest.raises(PermissionError):
        mmap.mmap(file, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


UNMAPPABLE = {
    "lock": (threading.Lock, r"^it does not pickle \(TypeError: cannot pickle '_thread.lock' object\)$"),
    "objects": (
        lambda: [os.urandom(60_000_000)],
        r"^60 of its 60 MB are Python objects, which every process would copy$",
    ),
}


@pytest.mark.parametrize(("make", "why"), UNMAPPABLE.values(), ids=UNMAPPABLE.keys())
def test_values_that_cannot_be_mapped_are_unchanged(census, make, why):
    value = [numbers(), make(), numbers(5000)]
    with pytest.raises(NotMappableError, match=why):
        export(value, destroys=True)
    assert value[0].tolist() == numbers().tolist()
    assert value[2].tolist() == numbers(5000).tolist()


def test_values_too_large_for_a_file_are_unchanged(census):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    value = numbers()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(NotMappableError, match=r"^the system gives no shared memory of 0 MB \(.*File too large\)$"):
            export(value, destroys=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert value.tolist() == numbers().tolist()


def test_an_error_in_the_middle_leaves_no_descriptor(census, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="disk full"):
        export(numbers(), destroys=True)


def test_platforms_without_such_calls(exported, monkeypatch):
    """A temporary file, memory that is not given back, and writes that take less than they were given."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(weights_file, "_madvise", None)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, memory, offset: real(file, memory[:5000], offset))
    value = numbers()
    files, layout = exported(value)
    assert attach(files, layout).tolist() == numbers().tolist() == value.tolist()


def test_a_mapped_file_is_not_changed(exported, tmp_path):
    path = tmp_path / "weights.npy"
    numpy.save(path, numbers(1_000_000))
    weights = numpy.load(path, mmap_mode="r")
    files, layout = exported({"part": weights[500_000:]})
    value = attach(files, layout)["part"]
    assert (type(value), value.tolist()) == (numpy.memmap, numbers(1_000_000)[500_000:].tolist())
    assert layout.nbytes == 4_000_000
    assert weights.tolist() == numpy.load(path).tolist() == numbers(1_000_000).tolist()


PEAK = """
import os, sys
import numpy
from headrace.ipc.weights_file import export

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

sizes = [*[1_000_000] * 50, 50_000_000, *[5000] * 100]
value = {number: numpy.full(size, number, "f4") for number, size in enumerate(sizes)}
size = sum(array.nbytes for array in value.values())
before, peak, write = resident(), 0, os.pwrite

def measured(file, memory, offset):
    global peak
    written = write(file, memory, offset)
    peak = max(peak, resident() + os.fstat(file).st_blocks * 512)
    return written

os.pwrite = measured
files, arena = export(value, destroys=True)
print(size, before, peak, resident(), os.fstat(files[0]).st_blocks * 512)
"""


def test_both_copies_together_take_little_more_than_the_value():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    size, before, peak, after, stored = map(int, done.stdout.split())
    assert size > 400_000_000
    assert before + 16_000_000 <= peak <= before + 40_000_000
    assert stored >= size
    assert after <= before - 0.98 * size


@pytest.mark.parametrize("make", [numbers, lambda: [numbers(), numbers(5000)], lambda: bytes(numbers())])
def test_a_value_that_stays_in_use_is_unchanged(exported, make):
    value = make()
    before = copy.deepcopy(value)
    view = value[:10] if isinstance(value, numpy.ndarray) else None
    mapped = attach(*exported(value, destroys=False))
    assert same(value, before)
    assert same(mapped, before)
    assert view is None or view.tolist() == value[:10].tolist()


def same(one, other):
    if isinstance(one, list):
        return all(map(same, one, other))
    return bytes(one) == bytes(other)


# Weights that a framework has mapped from files on disk: others map them from there, too, where that is safe.


@pytest.fixture
def weights(tmp_path):
    """Maps arrays of ones, of 2 MB each, from files of their own."""
    if sys.platform != "linux":
        pytest.skip("other systems do not tell what is mapped")

    def make(count=1, size=2 * MB):
        made = []
        for number in range(count):
            path = tmp_path / f"weights-{number}"
            numpy.ones(size, "u1").tofile(path)
            made.append(numpy.memmap(path, "u1", "c"))
        return made

    return make


def test_weights_that_are_mapped_from_a_file_are_not_copied(moved, weights):
    value = [*weights(2), numpy.full(MB, 7, "u1")]
    value[0][:MB].sum()  # some pages are in memory, others are not
    files, layout = moved(value)
    assert layout.nbytes == MB
    assert len(files) == 3
    assert layout.file_bytes == 4 * MB
    assert [int(part.sum()) for part in attach(files, layout)] == [2 * MB, 2 * MB, 7 * MB]


def test_weights_that_were_changed_in_memory_are_copied(moved, weights):
    changed, unchanged = weights(2)
    changed[5] = 3
    files, layout = moved([changed, unchanged])
    assert layout.nbytes == 2 * MB
    assert [int(part.sum()) for part in attach(files, layout)] == [2 * MB + 2, 2 * MB]


def test_weights_whose_file_was_deleted_are_copied(moved, weights, tmp_path):
    value = weights()
    (tmp_path / "weights-0").unlink()
    files, layout = moved(value)
    assert layout.nbytes == 2 * MB
    assert int(attach(files, layout)[0].sum()) == 2 * MB


def test_weights_whose_file_was_replaced_are_those_of_the_file_that_was_mapped(moved, weights, tmp_path):
    value = weights()
    path = tmp_path / "weights-0"
    path.rename(tmp_path / "older")
    path.write_bytes(b"x" * 2 * MB)
    files, layout = moved(value)
    assert int(attach(files, layout)[0].sum()) == 2 * MB


def test_weights_in_too_many_files_are_copied_but_for_the_largest(moved, weights):
    value = weights(MOST_FILES + 1)
    files, layout = moved(value)
    assert len(files) == MOST_FILES
    assert layout.nbytes == 2 * 2 * MB
    assert [int(part.sum()) for part in attach(files, layout)] == [2 * MB] * (MOST_FILES + 1)


def test_small_weights_are_copied(moved, weights):
    _, layout = moved(weights(size=MB // 2))
    assert layout.nbytes == MB // 2


@pytest.mark.parametrize("missing", ["_PAGEMAP", "sys"])
def test_weights_are_copied_where_the_system_does_not_tell(moved, weights, monkeypatch, tmp_path, missing):
    if missing == "sys":
        monkeypatch.setattr(weights_file.sys, "byteorder", "big")
    else:
        monkeypatch.setattr(weights_file, missing, tmp_path / "none")
    _, layout = moved(weights())
    assert layout.nbytes == 2 * MB
