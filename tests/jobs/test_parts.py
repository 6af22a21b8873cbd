"""What is whole in a part counts, and its rows are read in the order of the input, by kind and by source."""

import json
import os
from pathlib import PurePosixPath

import numpy
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from full_disk import full_disk
from headrace.core.result import PredictionResult, Predictions
from headrace.jobs import parts as parts_module
from headrace.jobs import stored_rows
from headrace.jobs.json_lines import as_line
from headrace.jobs.output_batches import batch_of_block, kept_columns, lines_in
from headrace.jobs.parts import KINDS, OutcomeWriter, PartWriter
from headrace.jobs.stored_rows import StoredOutput
from headrace.jobs.text_tables import lines_of
from headrace.rows.blocks import Block, place_at
from output_rows import write_rows

PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), unique=True)
PARTS = st.lists(st.tuples(st.sampled_from(KINDS), PLACES), max_size=5)
BLOCKS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=8)
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)


def line(number, source=0):
    letter = {"n": number, "place": [source, number], "stage": "inference", "error_type": "E", "message": "?" * 400}
    return place_at(source, number), letter


def rows_of(folder):
    rows = StoredOutput.find(str(folder)).good
    lines = b"".join(lines_of(rows.tables())).splitlines()
    assert len(lines) == len(rows.places)
    return [json.loads(line)["n"] for line in lines]


def places_in(tables):
    return [tuple(json.loads(line)["place"]) for table in tables for line in table.column(0).to_pylist()]


@MANY
@given(PARTS, st.sampled_from([1, 3, 1 << 16]))
def test_each_row_is_of_one_kind_and_one_source(tmp_path_factory, monkeypatch, parts, rows_in_stream):
    monkeypatch.setattr(parts_module, "GROUP_ROWS", rows_in_stream)
    folder = str(tmp_path_factory.mktemp("parts"))
    for kind, places in parts:
        writer = PartWriter(folder, kind, durable=True)
        for source, number in places:
            write_rows(writer, [line(number, source)])
        writer.finish()
    found = StoredOutput.find(folder)
    good, bad, skipped = ({one for kind, some in parts if kind == wanted for one in some} for wanted in KINDS)
    counts = found.counted(lambda: None)
    assert (counts.predictions, counts.failed) == (len(good), len(bad - good))
    assert (counts.skipped, counts.rows) == (len(skipped - bad - good), len(good | bad | skipped))
    for source in (None, *range(5)):
        some = found if source is None else found.of(source)
        wanted_good, wanted_bad = (
            sorted(one for one in rows if source in (None, one[0])) for rows in (good, bad - good)
        )
        assert places_in(some.good.tables()) == wanted_good
        assert places_in(table for _, table in some.pieces_of_letters()) == wanted_bad
        assert some.letters == len(wanted_bad)


def write_blocks(folder, blocks):
    """Writes a part of blocks of rows, each row with its source, its number, and half of that for a prediction."""
    writer = PartWriter(str(folder), "predictions", durable=True)
    for source, first, count in blocks:
        numbers = numpy.arange(first, first + count)
        sources = numpy.full(count, source) if first % 3 else [f"s{source}"] * count
        block = Block(source, first, ("n",), pyarrow.record_batch({"source": sources, "n": numbers}))
        places = numpy.arange(block.place, block.place + count)
        writer.write(places, batch_of_block(kept_columns(block.batch, None), numbers / 2, "m"))
    writer.finish()


@MANY
@given(st.lists(BLOCKS, min_size=1, max_size=4), st.sampled_from([1, 7, 1 << 16]))
def test_each_row_of_blocks_comes_once_and_in_order(tmp_path_factory, monkeypatch, several, rows_in_stream):
    monkeypatch.setattr(parts_module, "GROUP_ROWS", rows_in_stream)
    folder = tmp_path_factory.mktemp("parts")
    for blocks in several:
        write_blocks(folder, blocks)
    rows = [row for table in StoredOutput.find(str(folder)).good.tables() for row in table.to_pylist()]
    assert all((row["prediction"], row["model_id"]) == (row["n"] / 2, "m") for row in rows)
    everything = {(source, first + n) for blocks in several for source, first, count in blocks for n in range(count)}
    assert [(int(str(row["source"]).strip("s")), row["n"]) for row in rows] == sorted(everything)


def written_by_one(folder, outcomes, **options):
    """What is stored of outcomes that came one after the other."""
    writer = OutcomeWriter(str(folder), None, resume=False, **options)
    writer.begin()
    for one in outcomes:
        writer.write([one])
    writer.finish()
    return StoredOutput.find(str(folder))


@pytest.mark.parametrize("values", [[0.5] * 64, [0.5] * 63, [{"a": 1}] * 64, [0.5] * 63 + ["x"]])
def test_many_rows_predicted_one_by_one_are_columns_where_these_hold_all_values(tmp_path, values):
    block = Block(0, 0, batch=pyarrow.record_batch({"n": range(len(values))}))
    (table,) = written_by_one(tmp_path, [Predictions(list(block.places())[::-1], values[::-1])]).good.tables()
    assert (lines_in(table) is None) is (values == [0.5] * 64)
    rows = [json.loads(line) for line in b"".join(lines_of([table])).splitlines()]
    assert rows == [{"n": n, "prediction": value} for n, value in enumerate(values)]


@pytest.mark.parametrize("model_id", ["m", 7, PurePosixPath("m"), "\ud800"], ids=repr)
def test_a_model_may_have_any_name(tmp_path, model_id):
    block = Block(0, 0, batch=pyarrow.record_batch({"n": range(64)}))
    predictions = Predictions(list(block.places()), [PredictionResult(None, 0.5, model_id)] * 64)
    rows = b"".join(lines_of(written_by_one(tmp_path, [predictions]).good.tables())).splitlines()
    assert [json.loads(row)["model_id"] for row in rows] == [json.loads(as_line(model_id))] * 64


@pytest.mark.parametrize(("rows", "typed"), [(1, [0]), (64, [0]), (64, ())])
def test_predictions_whose_types_change_all_the_time_are_in_few_pieces(tmp_path, rows, typed):
    block = Block(0, 0, batch=pyarrow.record_batch({"n": range(20 * rows)}))
    changing = [
        Predictions(list(block[n * rows : (n + 1) * rows].places()), [n / 2 if n % 2 else n] * rows) for n in range(20)
    ]
    stored = written_by_one(tmp_path, changing, typed=typed)
    assert len(stored.places) == len(block)
    assert len(list(stored.good.tables())) < 10


def test_parts_that_follow_each_other_are_in_memory_one_by_one(tmp_path, monkeypatch):
    loaded = []
    load = stored_rows._load
    monkeypatch.setattr(stored_rows, "_load", lambda stream: loaded.append(stream) or load(stream))
    for part in range(9):
        writer = PartWriter(str(tmp_path), "predictions")
        write_rows(writer, [line(10 * part + n) for n in (2, 0, 1)])
        writer.finish()
    for number, table in enumerate(StoredOutput.find(str(tmp_path)).good.tables()):
        assert table.num_rows == 3
        assert len(loaded) == number + 1


def test_a_long_part_does_not_wait_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(parts_module, "GROUP_BYTES", 100_000)
    part = PartWriter(str(tmp_path), "predictions")
    for n in range(60):
        write_rows(part, [(n, "x" * 10_000)])
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size > 300_000
    part.finish()
    assert len(StoredOutput.find(str(tmp_path)).places) == 60


@pytest.mark.parametrize("paid", [False, True])
def test_durable_rows_wait_for_a_second_and_paid_ones_not_at_all(tmp_path, monkeypatch, paid):
    now = 100.0
    monkeypatch.setattr(parts_module.time, "monotonic", lambda: now)
    writer = PartWriter(str(tmp_path), "predictions", durable=True, paid=paid)
    for n in range(3):
        write_rows(writer, [line(n)])
    assert rows_of(tmp_path) == ([0, 1, 2] if paid else [0])
    now += 1
    write_rows(writer, [line(3)])
    assert rows_of(tmp_path) == [0, 1, 2, 3]
    writer.finish()


@pytest.mark.parametrize(("lost", "most"), [(0, 20), (1, 20), (20, 19), (400, 19), (5000, 17)])
def test_what_a_killed_process_had_begun_counts_as_far_as_it_is_whole(tmp_path, lost, most):
    writer = PartWriter(str(tmp_path), "predictions", durable=True, paid=True)
    for n in range(20):
        write_rows(writer, [line(n)])
    writer.finish()
    (begun,) = tmp_path.iterdir()
    os.truncate(begun, begun.stat().st_size - lost)
    there = rows_of(tmp_path)
    assert there == list(range(len(there)))
    assert 0 < len(there) <= most
    assert len(there) == most or lost == 5000


def test_rows_that_a_process_adds_meanwhile_are_not_read(tmp_path):
    """One that is about to end may still write."""
    writer = PartWriter(str(tmp_path), "predictions", durable=True, paid=True)
    write_rows(writer, [line(0)])
    found = StoredOutput.find(str(tmp_path)).good
    write_rows(writer, [line(1)])
    assert (len(found.places), sum(table.num_rows for table in found.tables())) == (1, 1)
    writer.finish()


@pytest.mark.parametrize("most", [0, 5000, 15_000, 70_000, 200_000])
def test_after_an_error_nothing_is_added_though_there_is_room_again(tmp_path, monkeypatch, most):
    """What is found is right, wherever in the lines the disk was full."""
    monkeypatch.setattr(parts_module, "GROUP_BYTES", 10_000)
    writer = PartWriter(str(tmp_path), "predictions", durable=True)

    def write():
        for n in range(20_000):
            write_rows(writer, [line(n)])

    with full_disk(most), pytest.raises(OSError, match="too large"):
        write()
    writer.abandon()
    there = rows_of(tmp_path)
    assert there == list(range(len(there)))
    assert len(there) < 1000


def test_dead_letters_are_counted(tmp_path, monkeypatch):
    """What comes often is found among many messages that do not, and messages are short."""
    monkeypatch.setattr(stored_rows, "_DISTINCT_MESSAGES", 10)
    letter = {"stage": "inference", "error_type": "E"}
    messages = [f"row {n} is bad" if n % 5 else "no\nsuch " + "x" * 10_000 for n in range(1000)]
    part = PartWriter(str(tmp_path), "letters")
    write_rows(part, [(n, {**letter, "message": message}) for n, message in enumerate(messages)])
    part.finish()
    report = StoredOutput.find(str(tmp_path)).counted(lambda: None)
    assert report.dead_letters == {("inference", "E"): 1000}
    ((often, count), *others) = report.messages.items()
    assert (often[:24], len(often), count) == ("inference E: no such xxx", len("inference E: ") + 300, 200)
    assert len(others) < 10
