"""Rows of parts are read in the order of the input, by kind and by source, and few at a time."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.jobs import stored_rows
from headrace.jobs.durable import DurablePartWriter
from headrace.jobs.output_batches import OutputLine
from headrace.jobs.stored_rows import Messages, StoredOutput, StoredRows
from headrace.rows.blocks import place_at

PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), unique=True)
PARTS = st.lists(st.tuples(st.sampled_from([True, False, None]), PLACES), max_size=5)


@pytest.fixture
def write(tmp_path_factory):
    """Writes parts of rows, each part with its kind, into a new folder."""

    def write(parts):
        folder = str(tmp_path_factory.mktemp("parts"))
        for kind, places in parts:
            writer = DurablePartWriter(folder, predictions=kind)
            for place in places:
                line = {"place": place, "stage": "inference", "error_type": "E"}
                writer.write_line(OutputLine(place_at(*place), json.dumps(line)))
            writer.finish()
        return folder

    return write


def places_in(tables):
    return [tuple(json.loads(line)["place"]) for table in tables for line in table.column(0).to_pylist()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PARTS)
def test_each_row_is_of_one_kind_and_one_source(write, parts):
    found = StoredOutput.find(write(parts))
    good, bad, skipped = (
        {one for kind, some in parts if kind is wanted for one in some} for wanted in (True, False, None)
    )
    assert places_in(found.tables(predictions=True)) == sorted(good)
    assert places_in(found.tables(predictions=False)) == sorted(bad - good)
    counts = found.counted(lambda: None)
    assert (counts.predictions, sum(counts.dead_letters.values())) == (len(good), len(bad - good))
    assert (counts.skipped, counts.rows) == (len(skipped - bad - good), len(good | bad | skipped))
    for source in range(5):
        some = found.of(source)
        assert places_in(some.tables(predictions=True)) == sorted(one for one in good if one[0] == source)
        assert places_in(some.tables(predictions=False)) == sorted(one for one in bad - good if one[0] == source)
        assert some.letters == sum(one[0] == source for one in bad - good)


def test_parts_that_follow_each_other_are_in_memory_one_by_one(write, monkeypatch):
    loaded = []
    load = stored_rows._load
    monkeypatch.setattr(stored_rows, "_load", lambda *stream: loaded.append(stream) or load(*stream))
    folder = write([(True, [(0, 10 * part + n) for n in (2, 0, 1)]) for part in range(9)])
    for number, table in enumerate(StoredRows.find(folder, predictions=True).tables()):
        assert table.num_rows == 3
        assert len(loaded) == number + 1


def test_what_comes_often_is_found_among_thousands_that_do_not():
    messages = Messages()
    for n in range(20_000):
        messages.add("inference ValueError", f"row {n} is bad")
        if n % 4 == 0:
            messages.add("inference KeyError", "no\nsuch key")
    assert next(iter(messages.most_frequent(3).items())) == ("inference KeyError: no such key", 5000)
    assert len(messages.most_frequent()) <= 100


def test_messages_are_short():
    messages = Messages()
    messages.add("reading E", "x" * 100_000)
    messages.add("reading E", "")
    assert sorted(map(len, messages.most_frequent())) == [9, 9 + 2 + 300]
