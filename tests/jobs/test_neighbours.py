"""Unreadable lines know the rows around them, wherever a file is cut into pieces."""

import pyarrow
import pytest

from headrace.jobs.neighbours import END, digest, noting_neighbours
from headrace.rows.records import BrokenLine


def broken():
    return BrokenLine("?", "in.jsonl", 1, ValueError("no"))


def around(pieces):
    rows = [row for piece in noting_neighbours(pieces) if isinstance(piece, list) for row in piece]
    return [row.around for row in rows if isinstance(row, BrokenLine)]


ROWS = [broken(), {"n": 1}, {"n": 2}, broken(), broken(), {"n": 5}, broken()]
AROUND = [
    [[2, digest({"n": 1})]],
    [[3, digest({"n": 2})], [6, digest({"n": 5})]],
    [[3, digest({"n": 2})], [6, digest({"n": 5})]],
    [[6, digest({"n": 5})], [8, END]],
]


@pytest.mark.parametrize("cut", range(len(ROWS)))
def test_neighbours_are_the_nearest_readable_rows(cut):
    found = around([ROWS[:cut], ROWS[cut:]])
    if cut == 4:  # what is behind the next line, which cannot be read, either, is not looked for
        assert found == [AROUND[0], AROUND[1][:1], *AROUND[2:]]
    else:
        assert found == AROUND


def test_neighbours_may_be_in_record_batches_or_done():
    batch = pyarrow.RecordBatch.from_pylist([{"n": 1}, {"n": 2}])
    assert around([batch, [broken()], batch]) == [[[2, digest({"n": 2})], [4, digest({"n": 1})]]]
    assert around([5, [broken()], 5]) == [[]]
