"""The bytes of waiting elements are estimated, whatever the elements are."""

from __future__ import annotations

import sys
from statistics import median
from types import SimpleNamespace

import numpy
import pytest

from headrace.batching.batcher import WaitingBytes, footprint

MEGABYTE = numpy.zeros(1_000_000, dtype=numpy.uint8)


class Unruly:
    """Refuses to tell its size."""

    @property
    def nbytes(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (MEGABYTE, 1e6, 1e6),
        (memoryview(MEGABYTE), 1e6, 1e6),
        (b"x" * 1000, 1000, 1100),
        ("x" * 1000, 1000, 1100),
        ({"a": MEGABYTE, "b": MEGABYTE}, 2e6, 2.01e6),
        (("key", MEGABYTE), 1e6, 1.01e6),
        ([1.5] * 100_000, 3e6, 4e6),
        (SimpleNamespace(image=MEGABYTE), 1e6, 1.01e6),
        ([[[[[MEGABYTE]]]]], 1, 1e4),
        ({}, 1, 1000),
        (None, 1, 100),
        (Unruly(), 1, 100),
    ],
    ids=lambda value: type(value).__name__,
)
def test_footprint_estimates_bytes(value, least, most):
    assert least <= footprint(value) <= most


def test_footprint_does_not_follow_cycles():
    circle = []
    circle.append(circle)
    assert footprint(circle) < 1000 * sys.getsizeof(circle)


def weighed(elements, bound):
    """The estimated and the real bytes waiting when the bound was reached; the list's length."""
    waiting, growing = WaitingBytes(bound), []
    for element in elements:
        growing.append(element)
        if len(growing) >= waiting.next_measurement:
            waiting.measure(growing)
        if waiting.bytes >= bound:
            break
    return waiting.bytes, sum(map(footprint, growing)), len(growing)


def test_a_few_large_ones_among_many_small_ones_are_bounded_on_average():
    large, small = bytes(1_000_000), bytes(10)
    found = [weighed([large if n % 50 == at else small for n in range(100_000)], 8_000_000)[1] for at in range(50)]
    assert median(found) < 16_000_000
    assert max(found) < 160_000_000


def test_small_elements_are_rarely_measured():
    waiting, looks, growing = WaitingBytes(64_000_000), 0, []
    for element in range(64_000):
        growing.append(element)
        if len(growing) >= waiting.next_measurement:
            waiting.measure(growing)
            looks += 1
    assert looks < 520
    assert waiting.bytes == pytest.approx(sum(map(sys.getsizeof, growing)), rel=0.01)
