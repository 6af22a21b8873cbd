"""Parts that are there are whole, and their rows are read in the order of the input."""

import json
import os
from unittest import mock

import numpy
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from full_disk import full_disk
from headrace.jobs import durable
from headrace.jobs import parts as parts_module
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.output_batches import OutputLine, batch_of_block
from headrace.jobs.row_ranges import RowRanges, place_at
from headrace.jobs.stored_rows import StoredRows
from headrace.jobs.text_tables import lines_of
from headrace.rows.blocks import Block

BLOCKS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=8)


@pytest.fixture
def write(tmp_path):
    """Writes a part of rows, which are numbers of one source."""

    def write(numbers, folder=tmp_path, source=0):
        writer = DurablePartWriter(str(folder), predictions=True)
        for n in numbers:
            writer.write_line(OutputLine(place_at(source, n), f'{{"n": {n}}}'))
        return writer.finish()

    return write


def rows_of(folder):
    parts = StoredRows.find(str(folder), predictions=True)
    lines = b"".join(lines_of(parts.tables())).splitlines()
    assert len(lines) == len(parts.places)
    return [json.loads(line)["n"] for line in lines]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, unique=True), max_size=4), st.sampled_from([1, 4, 1 << 12]))
def test_each_row_comes_once_and_in_order(tmp_path_factory, write, parts, waiting):
    folder = tmp_path_factory.mktemp("parts")
    with mock.patch.object(parts_module, "_WAITING", waiting), mock.patch.object(parts_module, "_ROWS", 3 * waiting):
        for numbers in parts:
            write(numbers, folder)
        assert rows_of(folder) == sorted({n for numbers in parts for n in numbers})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.integers(0, 50), unique=True), st.sets(st.integers(0, 50)))
def test_rows_that_others_have_are_left_out(tmp_path_factory, write, numbers, others):
    folder = tmp_path_factory.mktemp("parts")
    write(numbers, folder)
    found = StoredRows.find(str(folder), predictions=True)
    without = RowRanges(sorted(others), [n + 1 for n in sorted(others)])
    lines = b"".join(lines_of(found.tables(without=without))).splitlines()
    assert [json.loads(line)["n"] for line in lines] == sorted(set(numbers) - others)


def test_sources_keep_their_order(tmp_path, write):
    write([0, 1], source=1)
    write([2, 0, 1], source=0)
    assert rows_of(tmp_path) == [0, 1, 2, 0, 1]


def test_a_row_is_durable_though_none_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 0.01)
    writer = DurablePartWriter(str(tmp_path), predictions=True)
    writer.write_line(OutputLine(3, "{}"))
    while not len(StoredRows.find(str(tmp_path), predictions=True).places):
        pass
    writer.finish()


def test_a_disk_that_fails_is_an_error_of_who_writes_next(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 0.01)
    writer = DurablePartWriter(str(tmp_path / "gone"), predictions=True)

    def write_on():
        for n in range(10_000_000):
            writer.write_line(OutputLine(n, f'{{"n": {n}}}'))

    with pytest.raises(FileNotFoundError):
        write_on()


class _NoMemory(DurablePartWriter):
    """Whose second part fails with an error that is none of the disk."""

    parts = 0

    def _create(self):
        self.parts += 1
        if self.parts == 2:
            raise MemoryError("no memory")
        return super()._create()


def test_any_error_of_a_flush_in_the_background_is_kept(tmp_path, monkeypatch):
    """Even if nothing is written afterwards, the part does not end as if it were whole; what was durable stays so."""
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 1000)
    writer = _NoMemory(str(tmp_path), predictions=True)
    writer.write_line(OutputLine(0, '{"n": 0}'))
    writer._commit_in_time()
    writer.write_line(OutputLine(1, '{"n": 1}'))
    writer._commit_in_time()  # as the timer does
    with pytest.raises(MemoryError, match="no memory"):
        writer.write_line(OutputLine(2, "{}"))
    with pytest.raises(MemoryError, match="no memory"):
        writer.finish()
    assert rows_of(tmp_path) == [0]


def test_nothing_written_is_no_part(tmp_path):
    assert DurablePartWriter(str(tmp_path), predictions=False).finish() is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("most", [0, 5000, 15_000, 70_000, 200_000])
def test_after_an_error_nothing_is_added_though_there_is_room_again(tmp_path, monkeypatch, most):
    """What is found is right, wherever in the lines the disk was full."""
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 1000)
    monkeypatch.setattr(parts_module, "_BYTES", 10_000)
    writer = DurablePartWriter(str(tmp_path), predictions=True)

    def write(numbers):
        for n in numbers:
            writer.write_line(OutputLine(2 * n, json.dumps({"n": 2 * n, "more": "x" * 20})))

    write(range(1000))
    writer._commit()
    with full_disk(most), pytest.raises(OSError, match="too large"):
        write(range(1000, 20_000))
    for again in (lambda: write([10_000]), writer.finish):
        with pytest.raises(OSError, match="too large"):
            again()
    assert rows_of(tmp_path) == [2 * n for n in range(1000)]


def add(writer, block, keep, predictions, model_id):
    writer.write_batch(block.place, batch_of_block(block, keep, predictions, model_id))


@pytest.fixture
def write_blocks(monkeypatch):
    """Writes a part of blocks of rows, each row with its source, its number, and half of that for a prediction."""

    def write(folder, blocks, rows_in_stream=1 << 16):
        monkeypatch.setattr(parts_module, "_ROWS", rows_in_stream)
        writer = DurablePartWriter(str(folder), predictions=True)
        for source, first, count in blocks:
            numbers = numpy.arange(first, first + count)
            sources = numpy.full(count, source) if first % 3 else [f"s{source}"] * count
            batch = pyarrow.record_batch({"source": sources, "n": numbers})
            add(writer, Block(source, first, ("n",), batch), None, numbers / 2, "m")
        return writer.finish()

    return write


def found(folder):
    return StoredRows.find(str(folder), predictions=True)


def block_rows_of(folder):
    rows = [row for table in found(folder).tables() for row in table.to_pylist()]
    assert len(rows) == len(found(folder).places)
    assert all((row["prediction"], row["model_id"]) == (row["n"] / 2, "m") for row in rows)
    return [(int(str(row["source"]).strip("s")), row["n"]) for row in rows]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=4), st.sampled_from([1, 7, 1 << 16]))
def test_each_row_of_blocks_comes_once_and_in_order(tmp_path_factory, write_blocks, several, rows_in_stream):
    folder = tmp_path_factory.mktemp("parts")
    for blocks in several:
        write_blocks(folder, blocks, rows_in_stream)
    everything = {(source, first + n) for blocks in several for source, first, count in blocks for n in range(count)}
    assert block_rows_of(folder) == sorted(everything)


@pytest.mark.parametrize("lost", [0, 1, 100, 5000])
def test_what_a_killed_process_had_begun_counts_as_far_as_it_is_whole(tmp_path, monkeypatch, lost):
    """Rows that are paid for are there at once; bytes may be missing at the end of the file."""
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 3600.0)
    writer = DurablePartWriter(str(tmp_path), predictions=True, paid=True)
    for n in range(20):
        writer.write_line(OutputLine(n, json.dumps({"n": n, "long": "x" * 100})))
    (begun,) = tmp_path.iterdir()
    assert begun.suffix == ".open"
    os.truncate(begun, begun.stat().st_size - lost)
    assert rows_of(tmp_path) == []
    durable.recover(str(tmp_path))
    there = rows_of(tmp_path)
    assert there == list(range(len(there)))
    assert 20 - len(there) == (0 if not lost else 1 if lost <= 100 else 20 - len(there))
    assert len(there) > 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".predictions"]
    writer.write_line(
        OutputLine(20, "{}")
    )  # the process is at work after all: its rows are lost, and no file is broken
    with pytest.raises(FileNotFoundError):
        writer.finish()
    assert rows_of(tmp_path) == there


def test_many_bytes_are_durable_before_their_time(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_COMMIT_SECONDS", 3600.0)
    monkeypatch.setattr(durable, "_COMMIT_BYTES", 1000)
    monkeypatch.setattr(parts_module, "_ROWS", 500)
    writer = DurablePartWriter(str(tmp_path), predictions=True)
    add(writer, Block(0, 0, ("n",), pyarrow.record_batch({"n": range(400)})), (), numpy.zeros(400), None)
    add(writer, Block(0, 400, ("n",), pyarrow.record_batch({"n": range(100)})), (), numpy.zeros(100), None)
    while len(found(tmp_path).places) < 500:
        pass
    writer.finish()
