"""Rows in columns come out of their parts in the order of the input, each once, wherever a part breaks off."""

import io
import os
import random

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.jobs import durable, parts
from headrace.jobs.blocks import Block
from headrace.jobs.durable import DurableParts, DurablePartWriter
from headrace.jobs.output_batches import batch_of_block
from headrace.jobs.tables import lines_of, write_parquet

BLOCKS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=8)
SLOW = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}


def add(writer, block, keep, predictions, model_id):
    writer.write_batch(block.place, batch_of_block(block, keep, predictions, model_id))


@pytest.fixture
def write(monkeypatch):
    """Writes a part of blocks of rows, each row with its source, its number, and their sum for a prediction."""

    def write(folder, blocks, rows_in_stream=1 << 16):
        monkeypatch.setattr(parts, "_ROWS", rows_in_stream)
        writer = DurablePartWriter(str(folder), predictions=True)
        for source, first, count in blocks:
            numbers = numpy.arange(first, first + count)
            sources = numpy.full(count, source) if first % 3 else [f"s{source}"] * count
            batch = pyarrow.record_batch({"source": sources, "n": numbers})
            add(writer, Block(source, first, ("n",), batch), None, numbers / 2, "m")
        return writer.finish()

    return write


def found(folder):
    return DurableParts.find(str(folder), predictions=True)


def rows_of(folder):
    rows = [row for table in found(folder).tables() for row in table.to_pylist()]
    assert len(rows) == len(found(folder).places)
    assert all((row["prediction"], row["model_id"]) == (row["n"] / 2, "m") for row in rows)
    return [(int(str(row["source"]).strip("s")), row["n"]) for row in rows]


@settings(max_examples=60, **SLOW)
@given(st.lists(BLOCKS, min_size=1, max_size=4), st.sampled_from([1, 7, 1 << 16]))
def test_each_row_comes_once_and_in_order(tmp_path_factory, write, several, rows_in_stream):
    folder = tmp_path_factory.mktemp("parts")
    for blocks in several:
        write(folder, blocks, rows_in_stream)
    everything = {(source, first + n) for blocks in several for source, first, count in blocks for n in range(count)}
    assert rows_of(folder) == sorted(everything)


def test_files_that_break_off_anywhere(tmp_path, write, monkeypatch):
    """Random cuts, as a kill or a loss of power leaves them: what is found are the rows of streams that are whole."""
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 3600.0)
    blocks = [(0, first, 5) for first in range(1, 1201, 30)]
    part = write(tmp_path, blocks, 50)
    written = [(0, first + n) for _, first, count in blocks for n in range(count)]
    sizes = {path: os.path.getsize(path) for path in (part.path, part.path + ".index")}
    random.seed(5)
    for path in [*random.choices(list(sizes), k=10), *sizes]:
        os.truncate(path, random.randrange(sizes[path] + 1) if os.path.getsize(path) else 0)
        rows = rows_of(tmp_path)
        assert rows == written[: len(rows)]
        assert len(rows) % 50 == 0
        assert len(rows) < len(written)


def test_rows_that_nothing_follows_are_durable(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 0.01)
    writer = DurablePartWriter(str(tmp_path), predictions=True)
    add(writer, Block(0, 3, ("n",), pyarrow.record_batch({"n": [1, 2]})), (), numpy.zeros(2), None)
    while len(found(tmp_path).places) < 2:
        pass
    assert writer.finish().counts == {"predictions": 2}


def test_many_bytes_are_durable_before_their_time(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 3600.0)
    monkeypatch.setattr(durable, "_COMMIT_BYTES", 1000)
    monkeypatch.setattr(parts, "_ROWS", 500)
    writer = DurablePartWriter(str(tmp_path), predictions=True)
    add(writer, Block(0, 0, ("n",), pyarrow.record_batch({"n": range(400)})), (), numpy.zeros(400), None)
    add(writer, Block(0, 400, ("n",), pyarrow.record_batch({"n": range(100)})), (), numpy.zeros(100), None)
    while len(found(tmp_path).places) < 500:
        pass
    writer.finish()


@settings(max_examples=40, **SLOW)
@given(st.lists(st.integers(1, 60), max_size=6))
def test_however_rows_are_cut_the_files_are_the_same(cuts):
    rows = pyarrow.table({"n": range(200), "x": [n / 7 for n in range(200)], "t": ["é" * (n % 9) for n in range(200)]})
    pieces, start = [], 0
    for size in [*cuts, 200]:
        pieces += [rows.slice(start, size)] if start < 200 else []
        start += size
    whole, cut = io.BytesIO(), io.BytesIO()
    write_parquet(whole, lambda: [rows], lambda: None)
    write_parquet(cut, lambda: pieces, lambda: None)
    assert cut.getvalue() == whole.getvalue()
    assert b"".join(lines_of(pieces)) == b"".join(lines_of([rows]))
