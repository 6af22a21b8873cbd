"""Rows of JSON lines are those of Python's ``json`` module, whether Arrow reads them or not."""

import json

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.jobs.files import Source
from headrace.jobs.json_lines import read_json_blocks, read_json_records
from headrace.rows.blocks import Block, BrokenLine

NAMES = st.sampled_from(["a", "b", "é", 'quoted "', ""])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@pytest.fixture
def source(tmp_path):
    """Writes lines into a file."""

    def write(lines):
        (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return Source(str(tmp_path / "in.jsonl"), "jsonl")

    return write


def rows(piece):
    return Block(0, 0, batch=piece).rows() if isinstance(piece, pyarrow.RecordBatch) else piece


def read(source):
    return [row for piece in read_json_blocks(source) for row in rows(piece)]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=6), st.integers(1, 40))
def test_rows_are_those_of_json(source, objects, times):
    lines = [json.dumps(one, ensure_ascii=n % 2 == 0) for n, one in enumerate(objects * times)]
    found = read(source(lines))
    assert list(map(repr, found)) == list(map(repr, map(json.loads, lines)))
    assert found == list(read_json_records(source(lines)))


def test_alike_lines_are_record_batches(source):
    pieces = list(read_json_blocks(source(f'{{"a": {n}, "b": "x", "c": null}}' for n in range(1000))))
    assert all(isinstance(piece, pyarrow.RecordBatch) for piece in pieces)
    assert pieces[0].schema.types == [pyarrow.int64(), pyarrow.string(), pyarrow.null()]


@pytest.mark.parametrize(
    "odd",
    [
        '{"a": 1.0}',
        '{"a": 10000000000000000000}',
        '{"a": "x"}',
        '{"a": 1, "a": 1}',
        '{"b": 1}',
        "{}",
        '{"a": 01}',
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        "[1]",
        "",
    ],
)
def test_an_odd_line_is_read_by_itself(source, odd):
    lines = ['{"a": 1}'] * 200 + [odd] + ['{"a": 2}'] * 200
    pieces = list(read_json_blocks(source(lines)))
    assert [type(piece) for piece in pieces] == [pyarrow.RecordBatch, list, pyarrow.RecordBatch]
    assert [rows(piece) for piece in pieces[::2]] == [[{"a": 1}] * 200, [{"a": 2}] * 200]
    assert all(isinstance(row, BrokenLine) or repr(row) == repr(json.loads(odd)) for row in pieces[1])
    assert [row.number for row in pieces[1] if isinstance(row, BrokenLine)] in ([], [201])
