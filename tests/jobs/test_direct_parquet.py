"""Predictions go into the output's Parquet file at once where they can, and no row depends on whether they do."""

import json

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from headrace.jobs import output, parts
from headrace.jobs.output_batches import lines_in
from headrace.jobs.parquet_tables import DirectParquet, write_parquet
from headrace.jobs.parts import PartWriter
from headrace.jobs.stored_rows import StoredOutput
from output_rows import write_rows


@pytest.fixture
def part(tmp_path, monkeypatch):
    """A writer whose row groups are of four rows or more."""
    monkeypatch.setattr(parts, "GROUP_ROWS", 4)
    return PartWriter(str(tmp_path), "predictions", direct=DirectParquet(str(tmp_path / "direct.parquet")))


def block(*numbers, as_type="int64"):
    values = [None if one is None else float(one) if as_type == "float64" else one for one in numbers]
    return pyarrow.RecordBatch.from_pydict({"n": pyarrow.array(values, as_type)})


def put(part, place, batch):
    part.write(numpy.arange(place, place + batch.num_rows), batch)


def stored(part, tmp_path):
    """The rows' numbers in order, and the name of the file that has just them."""
    part.finish()
    rows = StoredOutput.find(str(tmp_path)).good
    numbers = []
    for table in rows.tables():
        lines = lines_in(table)
        numbers += table["n"].to_pylist() if lines is None else [json.loads(line)["n"] for line in lines]
    return numbers, rows.whole_file()


def test_blocks_of_one_schema_are_one_file(part, tmp_path):
    for place in (0, 3, 6, 20):
        put(part, place, block(place, place + 1, place + 2))
    expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22]
    assert stored(part, tmp_path) == (expected, str(tmp_path / "direct.parquet"))
    file = pyarrow.parquet.ParquetFile(tmp_path / "direct.parquet")
    assert (file.num_row_groups, file.read()["n"].to_pylist()) == (2, expected)


FIRST = [(0, block(0, 1)), (2, block(2, 3, 4, 5))]


@pytest.mark.parametrize(
    "pieces",
    [
        [*FIRST, (6, block(6, 7, as_type="float64")), (8, block(8, 9))],
        [*FIRST, (6, None), (8, block(8, 9))],
        [(4, block(4, 5, 6, 7)), (0, block(0, 1, 2, 3)), (8, block(8, 9))],
        [(2, block(2, 3)), (0, block(0, 1)), (4, block(4, 5, 6, 7, 8, 9))],
        [(0, block(0, 1, 2, 3)), *[(4, block(4, 5, 6, 7, 8, 9))] * 2],
    ],
    ids=["another type", "lines", "order of groups", "order within a group", "twice"],
)
def test_rows_that_do_not_fit_make_the_file_a_part_of_the_output(part, pieces, tmp_path):
    for place, rows in pieces:
        write_rows(part, [(n, {"n": n}) for n in (6, 7)]) if rows is None else put(part, place, rows)
    assert stored(part, tmp_path) == (list(range(10)), None)


def test_a_column_without_any_value_keeps_its_type(part, tmp_path):
    put(part, 0, block(None, None, as_type="float64"))
    assert stored(part, tmp_path) == ([None, None], str(tmp_path / "direct.parquet"))


def test_a_column_whose_type_is_not_known_yet_is_none_for_the_file(part, tmp_path):
    put(part, 0, block(None, as_type="null"))
    put(part, 1, block(1))
    assert stored(part, tmp_path) == ([None, 1], None)
    assert not (tmp_path / "direct.parquet").exists()


@pytest.mark.parametrize("more", [True, False])
def test_a_row_group_that_cannot_be_written_fails_the_next_rows_or_the_part(part, monkeypatch, more):
    put(part, 0, block(0, 1, 2, 3))
    monkeypatch.setattr(DirectParquet, "_write", lambda *_: 1 / 0)
    put(part, 4, block(4, 5, 6, 7))
    with pytest.raises(ZeroDivisionError):
        put(part, 8, block(8, 9, 10, 11)) if more else part.finish()
    part.abandon()


def test_categories_of_several_blocks_share_a_dictionary(part, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "GROUP_ROWS", 100)
    rows = ["a" * 1000] * 50 + ["b" * 1000] * 50
    for place in (0, 50):
        some = pyarrow.array(rows[place : place + 50]).dictionary_encode()
        put(part, place, pyarrow.RecordBatch.from_pydict({"n": some}))
    assert stored(part, tmp_path) == (rows, str(tmp_path / "direct.parquet"))
    column = pyarrow.parquet.ParquetFile(tmp_path / "direct.parquet").metadata.row_group(0).column(0)
    assert column.total_uncompressed_size < 10_000  # each text a few times, statistics included


def test_a_run_writes_its_rows_once(tmp_path, both_ways, monkeypatch):
    """One row in the midst fails, and nothing joins the others afterwards."""
    rows = numpy.random.default_rng(5).normal(size=(5000, 2)) * 20
    rows[1234, 0] = 13
    pyarrow.parquet.write_table(pyarrow.table({"a": rows[:, 0], "b": rows[:, 1]}), tmp_path / "in.parquet")
    joined = []
    monkeypatch.setattr(output, "write_parquet", lambda *given: joined.append(write_parquet(*given)))
    (schema, found), letters, predictions, _ = both_ways(tmp_path / "in.parquet", output="out.parquet")
    assert joined == []
    assert (schema.metadata, predictions, len(letters)) == (None, 4999, 1)
    assert [row["a"] for row in found] == [*rows[:1234, 0], *rows[1235:, 0]]
