"""What waits is counted roughly, whatever it is."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy
import pytest

from headrace.batching.footprint import footprint

MEGABYTE = numpy.zeros(1_000_000, dtype=numpy.uint8)


class Unruly:
    """Says nothing of itself."""

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
def test_footprint(value, least, most):
    assert least <= footprint(value) <= most


def test_it_does_not_follow_circles():
    circle = []
    circle.append(circle)
    assert footprint(circle) < 1000 * sys.getsizeof(circle)
