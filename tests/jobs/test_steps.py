"""Blocks come to the model one ahead, and cut to what suits it."""

import threading
from contextlib import closing

import pyarrow
import pytest

from headrace.jobs.steps import cut_by_time
from headrace.jobs.storage import prefetch
from headrace.rows.blocks import Block


def test_the_next_item_is_made_meanwhile_and_an_error_comes_behind_the_items_before_it():
    made = threading.Event()

    def items():
        yield 1
        made.set()
        yield 2
        raise OSError("torn")

    with closing(prefetch(items())) as coming:
        assert next(coming) == 1
        assert made.wait(60)
        assert next(coming) == 2
        with pytest.raises(OSError, match="torn"):
            next(coming)
    assert "headrace-reads-ahead" not in str(threading.enumerate())


def block(rows, first=0):
    return Block(0, first, ("x",), pyarrow.record_batch({"x": range(first, first + rows)}))


def parts_of(blocks, seconds_per_row):
    """The parts that a model gets, each row of which takes so many seconds."""
    now, parts = 0.0, []
    for part in cut_by_time(blocks, lambda: now):
        parts.append(part)
        now += len(part) * seconds_per_row
    return parts


@pytest.mark.parametrize("seconds_per_row", [0, 1e-3, 0.3, 7])
def test_paced_blocks_have_every_row_once_in_order(seconds_per_row):
    parts = parts_of([block(1000), block(1, 1000), block(400, 1001)], seconds_per_row)
    assert [n for part in parts for n in part.batch["x"].to_pylist()] == list(range(1401))
    assert [part.first for part in parts] == [part.batch["x"][0].as_py() for part in parts]


def test_parts_take_a_slow_model_a_second_and_a_fast_one_gets_whole_blocks():
    assert {len(part) for part in parts_of([block(1000)], 0.1)[4:-1]} <= {9, 10}
    assert {len(part) for part in parts_of([block(10)], 30)} == {1}
    sizes = [len(part) for part in parts_of([block(4096, first) for first in range(0, 40960, 4096)], 1e-6)]
    assert sizes[-6:] == [4096] * 6
    assert len(sizes) < 30
