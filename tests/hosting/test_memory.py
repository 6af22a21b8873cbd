"""Memory is what the process uses now, not its peak."""

from __future__ import annotations

import gc
import sys

import pytest

from headrace.hosting.memory import FrozenHeap, process_bytes

MEBIBYTE = 1 << 20


@pytest.mark.parametrize("size", [64 * MEBIBYTE])
def test_grows_with_what_is_held_and_falls_when_it_is_freed(size):
    before = process_bytes()
    held = bytearray(b"x") * size
    grown = process_bytes() - before
    assert grown == pytest.approx(size, rel=0.15)
    del held
    if sys.platform == "linux":
        assert process_bytes() - before < size / 2


def test_a_frozen_heap_is_spared_and_given_back():
    heap = FrozenHeap()
    assert gc.get_freeze_count() == 0
    heap.hold()
    assert gc.get_freeze_count() > 1000
    later = [[] for _ in range(1000)]
    heap.hold()
    assert {id(new) for new in later} <= {id(tracked) for tracked in gc.get_objects()}
    heap.release()
    assert gc.get_freeze_count() == 0


def test_what_others_froze_is_left_alone():
    gc.freeze()
    try:
        heap = FrozenHeap()
        heap.hold()
        heap.release()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
