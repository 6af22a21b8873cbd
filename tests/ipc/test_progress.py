"""The owner reads where a host is, whatever has become of it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from headrace.ipc.progress import Activity, ActivitySnapshot, Progress
from headrace.ipc.segment import Segment

pytestmark = pytest.mark.usefixtures("census")


@pytest.fixture
def memory():
    return memoryview(bytearray(Progress.SIZE))


@pytest.fixture
def progress(memory):
    return Progress(memory)


def test_marks_are_read(memory, progress):
    progress.begin(7)
    before = time.monotonic_ns()
    progress.mark(Activity.PREPROCESSING, 5, 2)
    snapshot = Progress(memory).read()
    assert snapshot == ActivitySnapshot(7, Activity.PREPROCESSING, 5, 2, snapshot.since_ns)
    assert before <= snapshot.since_ns <= time.monotonic_ns()
    assert 0 <= snapshot.seconds < 60


def test_marks_of_work_elsewhere_become_work_here(progress):
    progress.begin(7)
    progress.mark(Activity.LOADING, 5, 2)
    with progress.elsewhere():
        there = progress.read()
    here = progress.read()
    assert there == ActivitySnapshot(7, Activity.LOADING, 5, 2, there.since_ns, is_elsewhere=True)
    assert here == ActivitySnapshot(7, Activity.LOADING, 5, 2, here.since_ns)
    assert here.since_ns >= there.since_ns


@pytest.mark.parametrize("marks", [1, 2, 3])
def test_a_mark_that_is_not_finished_does_not_count(memory, progress, marks):
    """Whatever part of it has been written: a process may be stopped, or killed, at any time."""
    progress.begin(7)
    for number in range(marks):
        progress.mark(Activity.INFERENCE, number, number)
    before, snapshot = bytes(memory), progress.read()
    progress.mark(Activity.ANSWERING)
    after = bytes(memory)
    changed = [place for place in range(8, Progress.SIZE) if before[place] != after[place]]  # the first 8 are the count
    for written in range(len(changed) + 1):
        memory[:] = before
        for place in changed[:written]:
            memory[place] = after[place]
        assert progress.read() == snapshot
    memory[:] = after
    assert progress.read().activity is Activity.ANSWERING


def test_reads_return_one_complete_mark():
    """A child writes as fast as it can; the numbers that are read are always of one mark."""
    segment = Segment.create("progress", Progress.SIZE)
    child = os.fork()
    if not child:
        progress = Progress(segment.memory)
        for number in range(1, 1 << 60):
            progress._call = number
            progress.mark(Activity.INFERENCE, number, number)
    progress = Progress(segment.memory)
    moments = [progress.read() for _ in range(20_000)]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    segment.close()
    assert {(snapshot.call - snapshot.position, snapshot.call - snapshot.index) for snapshot in moments} == {(0, 0)}
