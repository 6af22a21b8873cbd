"""Blocks have the length that suits their consumer; ``test_blocks.py`` tests their contents."""

import pyarrow
import pytest

from headrace.jobs.column_blocks import cut_by_time
from headrace.rows.blocks import Block


def block(rows, first=0):
    return Block(0, first, ("x",), pyarrow.record_batch({"x": range(first, first + rows)}))


class Model:
    """Takes parts of blocks, each row of which takes so many seconds on its clock."""

    def __init__(self, seconds_per_row):
        self.seconds_per_row = seconds_per_row
        self.now = 0.0

    def take(self, blocks):
        parts = []
        for part in cut_by_time(blocks, lambda: self.now):
            parts.append(part)
            self.now += len(part) * self.seconds_per_row
        return parts


@pytest.mark.parametrize("seconds_per_row", [0, 1e-6, 1e-3, 0.3, 7])
def test_paced_blocks_have_every_row_once_in_order(seconds_per_row):
    parts = Model(seconds_per_row).take([block(1000), block(1, 1000), block(400, 1001)])
    assert [n for part in parts for n in part.batch["x"].to_pylist()] == list(range(1401))
    assert [part.first for part in parts] == [part.batch["x"][0].as_py() for part in parts]


def test_parts_take_a_slow_model_a_second():
    assert {len(part) for part in Model(0.1).take([block(1000)])[4:-1]} <= {9, 10}
    assert {len(part) for part in Model(30).take([block(10)])} == {1}


def test_a_fast_model_soon_gets_whole_blocks():
    sizes = [len(part) for part in Model(1e-6).take([block(4096, first) for first in range(0, 40960, 4096)])]
    assert sizes[-6:] == [4096] * 6
    assert len(sizes) < 30


def test_a_model_that_begins_slowly_soon_gets_more():
    model = Model(1.0)
    sizes = []
    for part in cut_by_time([block(100_000)], lambda: model.now):
        sizes.append(len(part))
        model.now += len(part) * (1.0 if len(sizes) < 10 else 1e-4)
    assert max(sizes) > 1000
