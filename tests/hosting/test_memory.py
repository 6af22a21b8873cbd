"""Memory is what the process uses now, not its peak."""

from __future__ import annotations

import sys

import pytest

from headrace.hosting.memory import process_bytes

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
