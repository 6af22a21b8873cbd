"""Segments say whether their memory is still in use, pools keep few of them, and nothing keeps a descriptor open."""

from __future__ import annotations

import os

import numpy
import pytest

from headrace.ipc.segment import PeerSegments, Segment, SegmentPool, anonymous_file
from large import torch

pytestmark = pytest.mark.usefixtures("census")

KILOBYTE = 1 << 10
MEGABYTE = 1 << 20
SMALLEST = 64 * KILOBYTE


@pytest.fixture
def segment():
    segment = Segment.create("test", 1)
    yield segment
    segment.close()


@pytest.fixture
def pool():
    pool = SegmentPool()
    yield pool
    pool._free.clear()


def shared(segment):
    return Segment(segment.name, os.dup(segment.file), segment.size)


def as_numpy(memory):
    return numpy.frombuffer(memory, numpy.float32)


def as_tensor(memory):
    return torch.frombuffer(memory, dtype=torch.float32)


KEEPERS = {
    "the memory": lambda memory: memory,
    "a slice": lambda memory: memory[8:16],
    "a view of a view in numpy": lambda memory: as_numpy(memory).reshape(4, -1)[1:].T[0],
    "an array in a dict": lambda memory: {"rows": [as_numpy(memory)]},
}
COPIERS = {
    "bytes": bytes,
    "a copy in numpy": lambda memory: as_numpy(memory)[1:].copy(),
    "nothing": lambda memory: None,
}
TENSORS_KEEP = {
    "a view of a view in torch": lambda memory: as_tensor(memory)[1:][::2],
    "numpy over torch": lambda memory: as_tensor(memory).numpy()[3:],
    "torch over numpy": lambda memory: torch.from_numpy(as_numpy(memory))[3:],
}
TENSORS_COPY = {"a sum in torch": lambda memory: as_tensor(memory) + 1}


@pytest.mark.parametrize(
    "ways", [KEEPERS, pytest.param(TENSORS_KEEP, marks=pytest.mark.large)], ids=["bytes and arrays", "tensors"]
)
def test_memory_that_is_kept_is_recognized(segment, ways):
    for how, keep in ways.items():
        memory, is_kept = segment.lend(KILOBYTE)
        kept = [keep(memory)]
        del memory
        assert is_kept(), how
        kept.clear()
        assert not is_kept(), how


@pytest.mark.parametrize(
    "ways", [COPIERS, pytest.param(TENSORS_COPY, marks=pytest.mark.large)], ids=["bytes and arrays", "tensors"]
)
def test_memory_that_is_not_kept_is_recognized(segment, ways):
    for how, keep in ways.items():
        memory, is_kept = segment.lend(KILOBYTE)
        kept = keep(memory)
        del memory
        assert not is_kept(), how
        del kept


def test_a_segment_that_cannot_be_mapped_leaves_nothing(descriptors):
    before = descriptors()
    with pytest.raises(ValueError, match="size"):
        Segment("empty", anonymous_file("empty", 0), 1)
    with pytest.raises(OSError, match=r"large|memory|Invalid"):
        Segment.create("huge", 1 << 62)
    assert descriptors() == before


def test_segments_without_memfd_are_unnamed_files(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    segment = Segment.create("plain", MEGABYTE)
    other = shared(segment)
    segment.memory[:5] = b"hello"
    assert bytes(other.memory[:5]) == b"hello"
    assert os.fstat(segment.file).st_nlink == 0
    assert not os.get_inheritable(segment.file)
    assert list(tmp_path.iterdir()) == []
    segment.close()
    other.close()


def test_the_other_side_lets_go_of_what_is_dropped(pool, descriptors):
    attached = PeerSegments()
    before = len(descriptors())
    segment = pool.take(1)
    attached.segment(segment.name, [os.dup(file) for file in pool.files_for(segment)])
    pool.drop(segment)
    names, pool.dropped = pool.dropped, []
    assert len(descriptors()) > before
    attached.drop(names)
    assert len(descriptors()) == before
    attached.drop(names)  # of a segment that was never introduced


def test_kept_memory_outlives_a_drop(pool):
    attached = PeerSegments()
    segment = pool.take(1)
    other = attached.segment(segment.name, [os.dup(file) for file in pool.files_for(segment)])
    segment.memory[:2] = b"ok"
    memory, is_kept = other.lend(2)
    attached.drop([segment.name])
    del other
    assert bytes(memory) == b"ok"
    assert is_kept()


def test_forgotten_pools_leave_nothing(descriptors):
    before = descriptors()
    pool, attached = SegmentPool(), PeerSegments()
    for size in (1, MEGABYTE):
        segment = pool.take(size)
        attached.segment(segment.name, [os.dup(file) for file in pool.files_for(segment)])
        pool.give_back(segment, size)
    del pool, attached, segment
    assert descriptors() == before
