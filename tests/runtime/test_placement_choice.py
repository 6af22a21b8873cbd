"""The choice of ``placement="auto"``."""

from __future__ import annotations

import pytest

from headrace.runtime.placement import choose

GB = 10**9


@pytest.mark.parametrize(
    ("nbytes", "processes", "free", "placement"),
    [
        (1 * GB, 4, 8 * GB, "process"),
        (1 * GB, 5, 8 * GB, "machine"),
        (1 * GB, 1, 2 * GB, "process"),
        (1 * GB + 1, 1, 2 * GB, "machine"),
        (0, 64, 1 * GB, "process"),
        (3 * GB, 8, 32 * GB, "machine"),
    ],
)
def test_choice_leaves_half_of_the_free_memory_unused(nbytes, processes, free, placement):
    assert choose(nbytes, processes, free).placement == placement
