"""``LanceDBWriteConfig`` with LanceDB itself: each id has one row, whatever was repeated, killed or written at once."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import apache_beam as beam
import lancedb
import pyarrow as pa
import pytest
from apache_beam.ml.rag.types import Chunk, Content, Embedding
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream as streams
from apache_beam.transforms import window

import headrace.beam
from headrace.beam import LanceDBWriteConfig
from headrace.core.errors import ConfigurationError, MissingExtraError
from waiting import wait_until

pytestmark = pytest.mark.large


def item(name, vector=(1.0, 2.0), text="a text", **metadata):
    return Chunk(Content(text=text), id=name, index=7, metadata=metadata, embedding=Embedding(list(vector)))


def write(run, items, uri, label="Write", **options):
    """The dead letters, once the pipeline has run."""
    elements = items if isinstance(items, beam.PCollection) else run.create(items)
    dead = elements | label >> LanceDBWriteConfig(str(uri), "table", **options).create_write_transform()
    return run.values(dead=dead | beam.Reshuffle())


def table(uri):
    return lancedb.connect(str(uri)).open_table("table")


def rows(uri):
    """The rows by id; there is one for each."""
    found = table(uri).to_arrow().to_pylist()
    by_id = {row["id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


@pytest.mark.since_beam("2.77", reason="not every older Beam has this transform")
def test_items_become_rows_that_a_search_finds(run, tmp_path):
    from apache_beam.ml.rag.ingestion.base import VectorDatabaseWriteTransform

    config = LanceDBWriteConfig(str(tmp_path), "table", columns={"year": pa.int64(), "by": pa.string()})
    items = [item("a", (1, 0), year=1, tags=["x"]), item("b", (0, 1), year=2, by="me"), item("c", (0.1, 1), year=3)]
    assert run.values(out=run.create(items) | VectorDatabaseWriteTransform(config)) == []
    nearest = table(tmp_path).search([0, 1]).where("year < 3").limit(2).to_list()
    assert [hit["id"] for hit in nearest] == ["b", "a"]
    row = {"text": "a text", "index": 7, "id": "a", "year": 1, "by": None}
    assert rows(tmp_path)["a"] == {**row, "metadata": '{"tags": ["x"]}', "vector": [1, 0]}
    assert (rows(tmp_path)["b"]["metadata"], rows(tmp_path)["b"]["by"]) == ("{}", "me")


def test_the_same_corpus_twice_is_the_same_rows_and_a_newer_item_replaces_an_older_one(make_run, tmp_path):
    for texts in ("one", "two"):
        items = [item(str(n), text=texts) for n in range(20)] + [item("new " + texts)]
        assert write(make_run(), [*items, item("0", text="last of its id")], tmp_path) == []
    found = rows(tmp_path)
    assert found.keys() == {*map(str, range(20)), "new one", "new two"}
    assert [found[name]["text"] for name in ("0", "1", "19", "new one")] == ["last of its id", "two", "two", "a text"]


def test_a_bundle_that_failed_after_writing_is_repeated(make_run, tmp_path):
    items = [item(str(n)) for n in range(10)]
    with pytest.raises(Exception, match="item bad: LanceDB stores a dense vector"):
        write(make_run(), [*items, Chunk(Content(text="x"), id="bad")], tmp_path, batch_size=4)
    assert 0 < len(rows(tmp_path)) <= 10
    write(make_run(), [*items, item("bad")], tmp_path, batch_size=4)
    assert rows(tmp_path).keys() == {*map(str, range(10)), "bad"}


def test_writers_at_the_same_time_leave_one_row_for_each_id(make_run, tmp_path):
    """As when a worker that was given up still writes, beside the one that repeats its bundle."""
    start = threading.Barrier(6)

    def work(which):
        mine = [item(str(n), (which, which)) for n in range(50)] + [item(f"{which}-{n}") for n in range(50)]
        start.wait()
        return write(make_run(), mine, tmp_path, batch_size=25)

    write(make_run(), [], tmp_path)  # makes the table
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [[]] * 6
    assert rows(tmp_path).keys() == {*map(str, range(50)), *(f"{w}-{n}" for w in range(6) for n in range(50))}


BAD = {
    "no vector": Chunk(Content(text="x"), id="bad"),
    "another length": item("bad", (1, 2, 3)),
    "no number": item("bad", (1, math.nan)),
    "too large": item("bad", (1, 1e300)),
    "nested": item("bad", [(1, 2)]),
    "sparse": Chunk(Content(text="x"), id="bad", embedding=Embedding([1.0, 2.0], ([3], [4.0]))),
    "no id": item(""),
    "id of another type": item(5),
    "id of bytes, which would be a second row of its text": item(b"a"),
    "no JSON": item("bad", other={1, 2}),
    "another type": item("bad", year="this"),
    "beyond the type": item("bad", year=2**70),
    "no text": item("bad", text="\ud800"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_item_that_does_not_fit_is_a_dead_letter_alone(run, tmp_path, bad):
    items = [item("a"), bad, item("b")]
    ((found, (kind, described, lines)),) = write(run, items, tmp_path, columns={"year": pa.int64()}, dead_letters=True)
    assert repr(found) == repr(bad)
    assert kind is ValueError
    assert "item" in described
    assert "".join(lines).startswith("Traceback")
    assert rows(tmp_path).keys() == {"a", "b"}


def test_table_that_cannot_be_opened_is_an_error_and_makes_no_dead_letters(run, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("Failed to connect")

    monkeypatch.setattr("headrace.beam.lancedb_sink._Table._settle_length", fail)
    with pytest.raises(Exception, match=r"table table in .*: Failed to connect"):
        write(run, [item("a")], tmp_path, dead_letters=True)


def test_vectors_of_another_model_are_one_clear_error(make_run, tmp_path):
    write(make_run(), [item("a")], tmp_path)
    with pytest.raises(Exception, match="3 numbers, those of table table have 2; a table is for vectors of one model"):
        write(make_run(), [item("b", (1, 2, 3))], tmp_path)


@pytest.mark.since_beam("2.77", reason="not every older Beam has images in its items")
def test_an_images_text_is_where_it_is(run, tmp_path):
    images = {"uri": "gs://there/a.png", "bytes": b"\x89PNG"}
    items = [Chunk(Content(image=image), id=name, embedding=Embedding([1.0])) for name, image in images.items()]
    write(run, items, tmp_path)
    assert {name: row["text"] for name, row in rows(tmp_path).items()} == {"uri": "gs://there/a.png", "bytes": None}


def test_a_stream_in_windows_is_written_as_it_comes(tmp_path):
    stream = streams.TestStream()
    for n in range(3):
        stream = stream.advance_watermark_to(n * 10).add_elements([window.TimestampedValue(item(str(n)), n * 10)])
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        items = pipeline | stream.advance_watermark_to_infinity() | beam.WindowInto(window.FixedWindows(5))
        _ = items | LanceDBWriteConfig(str(tmp_path), "table").create_write_transform()
    assert rows(tmp_path).keys() == {"0", "1", "2"}


PIPELINE = """
import sys
import apache_beam as beam
from apache_beam.ml.rag.types import Chunk, Content, Embedding
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from headrace.beam import LanceDBWriteConfig

if __name__ == "__main__":
    options = PipelineOptions(direct_num_workers=2, direct_running_mode="multi_processing")
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        items = [Chunk(Content(text="x"), id=str(n), embedding=Embedding([float(n)])) for n in range(200)]
        write = LanceDBWriteConfig(sys.argv[1], "table", batch_size=5).create_write_transform()
        _ = pipeline | beam.Create(items) | beam.Reshuffle() | write
"""


def test_killed_workers_leave_nothing_that_a_second_run_does_not_mend(tmp_path, popen):
    script = tmp_path / "killed_writers.py"
    script.write_text(PIPELINE)
    command = [sys.executable, str(script), str(tmp_path / "db")]
    with (tmp_path / "said").open("w") as said:
        first = popen(command, stderr=said, start_new_session=True)
        assert wait_until(lambda: first.poll() is not None or written(tmp_path / "db") >= 25, 250)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL, (tmp_path / "said").read_text()[-2000:]
    assert len(rows(tmp_path / "db")) >= 25
    subprocess.run(command, check=True, timeout=250)
    assert {name: row["vector"] for name, row in rows(tmp_path / "db").items()} == {str(n): [n] for n in range(200)}


def written(uri):
    with suppress(ValueError):  # it is not there yet, or only its folder is
        return table(uri).count_rows()
    return 0


ID, OTHERS = pa.field("id", pa.string(), nullable=False), [("text", pa.string()), ("index", pa.int64())]
WHOLE = [ID, *OTHERS, ("metadata", pa.string())]
PRESENT = {
    "no column metadata": ([ID, *OTHERS], "no column metadata of string"),
    "no primary key": (WHOLE, "no primary key"),
    "vector of any length": ([*WHOLE, ("vector", pa.list_(pa.float32()))], "no list of fixed size"),
}


@pytest.mark.parametrize(("columns", "message"), PRESENT.values(), ids=PRESENT)
def test_a_table_that_cannot_take_the_rows_is_an_error_and_stays_as_it_was(run, tmp_path, columns, message):
    made = lancedb.connect(str(tmp_path)).create_table("table", schema=pa.schema(columns))
    with pytest.raises(Exception, match=message):
        write(run, [item("a")], tmp_path)
    assert table(tmp_path).schema == made.schema


def test_a_table_of_ones_own_with_more_columns(run, tmp_path):
    columns = [*WHOLE, ("vector", pa.list_(pa.float32(), 2)), ("mine", pa.string())]
    made = lancedb.connect(str(tmp_path)).create_table("table", schema=pa.schema(columns))
    made.set_unenforced_primary_key("id")
    assert write(run, [item("a")], tmp_path) == []
    assert rows(tmp_path)["a"]["mine"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uri": ""}, "uri must be a text"),
        ({"table": None}, "table must be a text"),
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1"),
        ({"columns": {"text": pa.string()}}, "'text' needs a type of pyarrow, and a name of its own"),
        ({"columns": {"year": int}}, "'year' needs a type of pyarrow"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        LanceDBWriteConfig(**{"uri": "db", "table": "t", **changes})


def test_without_lancedb_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace.beam.lancedb_sink")
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(MissingExtraError, match="install the extra 'lancedb'"):
        headrace.beam.LanceDBWriteConfig
