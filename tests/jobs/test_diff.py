"""Outputs are compared row by row, whatever their formats."""

import json
import random

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from full_disk import full_disk
from headrace.core.errors import ConfigurationError
from headrace.jobs.diff import diff_outputs, wilson
from headrace.jobs.output import write_rows


def of(*predictions):
    return [{"id": f"r{place}", "prediction": prediction} for place, prediction in enumerate(predictions)]


@pytest.fixture
def diff(tmp_path):
    """Compares outputs of these rows, or tables, in files of these formats."""

    def write(path, rows):
        if path.suffix == ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            table = pyarrow.Table.from_pylist(rows) if isinstance(rows, list) else rows
            (pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table)(table, path)
        return str(path)

    def compare(old, new, formats=("jsonl", "jsonl"), **options):
        outputs = {f"old.{formats[0]}": old, f"new.{formats[1]}": new}
        return diff_outputs(*(write(tmp_path / name, rows) for name, rows in outputs.items()), **options)

    return compare


@pytest.mark.parametrize("old", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("new", ["jsonl", "csv", "parquet"])
def test_rows_are_matched_by_id_across_formats(diff, old, new):
    after = [{"id": "r9", "prediction": 0.5}, *reversed(of(1.5, 2.5, 3.0))]
    found = diff(of(1.5, 2.5, 3.5, 4.5), after, (old, new), ids=["id"])
    assert (found.matched, found.only_old, found.only_new, found.changed_rows) == (3, 1, 1, 1)
    assert found.rows.to_pylist() == [
        {"id": "r2", "prediction_old": 3.5, "prediction_new": 3.0},
        {"id": "r3", "prediction_old": 4.5, "prediction_new": None},
        {"id": "r9", "prediction_old": None, "prediction_new": 0.5},
    ]
    assert found.columns[0].absolute == pytest.approx({"mean": 0.5, "median": 0.5, "p95": 0.5, "maximum": 0.5})


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (["cat", "dog", None, None], ["cat", "cat", None, "dog"], [1, 3]),
        ([1, 2, 3], [1.0, 2.5, 3.0], [1]),
        ([True, False], [True, True], [1]),
        ([1, "one", None], [1, "two", None], [1]),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.5]], [1]),
        ([[1.0], [3.0, 4.0], None], [[1.0], [3.0], None], [1]),
        ([{"label": "a", "score": 0.5}] * 2, [{"label": "a", "score": 0.5}, {"label": "b", "score": 0.5}], [1]),
        ([2**60, 2**60], [2**60, 2**60 + 1], [1]),
        ([None, None], ["a", None], [0]),
        ([{}, {}], [{}, {}], []),
        (["\ud83d"], ["\ud83d\ude00"], [0]),
        ([1e308, -1e308], [-1e308, 1e308], [0, 1]),
        ([{"label": 1}, None], [{"label": 1}, None], []),
    ],
)
def test_rows_are_matched_by_place(diff, recwarn, old, new, changed):
    found = diff(of(*old), of(*new), columns=["prediction"])
    assert found.rows.column("row").to_pylist() == [place + 1 for place in changed]
    assert found.changed_rows == len(changed)
    assert not recwarn.list


def test_ids_may_have_any_name_and_an_output_no_rows(diff):
    old, new = [{"old": 1, "prediction": 1}], [{"old": 1, "prediction": 2}]
    none = pyarrow.table({"old": pyarrow.array([], "int64"), "prediction": pyarrow.array([], "int64")})
    assert diff(old, new, ("jsonl", "csv"), ids=["old"]).changed_rows == 1
    found = diff(none, new, ("csv", "csv"), ids=["old"]).rows.to_pylist()
    assert found == [{"old": 1, "prediction_old": None, "prediction_new": 2}]
    assert diff(old, none, ("jsonl", "csv"), ids=["old"]).only_old == 1


def test_objects_may_have_other_fields_or_be_missing(diff):
    old = of({"label": "a", "score": 0.5}, {"label": "b", "score": 0.5})
    found = diff(old, of({"label": "a"}, {"label": "c"}), ("jsonl", "parquet")).columns
    assert [(column.name, column.changed) for column in found] == [("prediction.label", 1), ("prediction.score", 2)]
    assert diff(of(None, None), old).changed_rows == 2


def test_json_lines_without_rows_have_no_columns(diff):
    with pytest.raises(ConfigurationError, match=r"old.jsonl has no column 'prediction'; .*--columns"):
        diff([], of(1, 2))


def test_numbers_within_the_tolerance_are_the_same(diff):
    assert diff(of(1.0, 2.0), of(1.05, 2.2), tolerance=0.1).changed_rows == 1


def test_what_changed_most_and_the_mean_have_intervals(diff):
    rng = random.Random(3)
    old = [rng.gauss(0, 1) for _ in range(400)]
    new = [value + rng.gauss(0.5, 0.1) for value in old]
    mean = diff(of(*old), of(*new), ("csv", "csv"), ids=["id"]).columns[0].mean
    assert mean.low < 0.5 < mean.high
    assert list(diff(of(*"xxyz"), of(*"yyyz")).columns[0].moves) == [("x", "y", 2)]


def test_vectors_have_a_cosine_similarity(diff):
    found = diff(of([1.0, 0.0], [1.0, 0.0]), of([2.0, 0.0], [0.0, 1.0]), ("parquet", "jsonl"))
    assert found.columns[0].cosine == pytest.approx((0.5, 0.0))
    assert found.changed_rows == 2


def test_columns_of_explode_are_compared_together(diff):
    same = {"prediction_a": 0.5, "prediction_b": 0.5}
    old, new = [{"prediction_a": 0.1, "prediction_b": 0.9}, same], [{"prediction_a": 0.2, "prediction_b": 0.8}, same]
    found = diff(old, new, ("csv", "csv"))
    assert [(column.name, column.changed) for column in found.columns] == [("prediction_a", 1), ("prediction_b", 1)]
    assert found.changed_rows == 1


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        (of(1, 2), of(1), {}, r"2 rows .* 1, .*--id"),
        (of(1, 2), of(1, 2), {"ids": ["ID"]}, "no column 'ID'; did you mean 'id'"),
        (of(1, 1), of(1, 1), {"ids": ["prediction"]}, "2 rows with prediction = 1"),
        ([{"id": 1, "prediction": 1}], of(1), {"ids": ["id"]}, "holds int64 in .* and string"),
        ([{"id": None, "prediction": 1}], of(1), {"ids": ["id"]}, "rows without 'id'"),
        ([{"id": [1], "prediction": 1}], of(1), {"ids": ["id"]}, "lists or objects in 'id'"),
        ([{"id": 1}], [{"id": 1}], {}, "--columns"),
        (of(1), of(1), {"tolerance": -1}, "tolerance"),
    ],
)
def test_what_cannot_be_compared_says_why(diff, old, new, options, message):
    with pytest.raises(ConfigurationError, match=message):
        diff(old, new, **options)


@pytest.mark.parametrize("name", ["changes.csv", "changes.jsonl.gz", "changes.parquet"])
def test_changed_rows_are_written(diff, tmp_path, name):
    path = str(tmp_path / name)
    write_rows(diff(of(1, 2, 3), of(1, 5, 3), ids=["id"]).rows, path)
    assert diff_outputs(path, path, ids=["id"], columns=["prediction_old", "prediction_new"]).matched == 1
    assert {file.name for file in tmp_path.iterdir()} == {"old.jsonl", "new.jsonl", name}


def test_share_has_a_wilson_interval():
    assert wilson(10, 1000) == pytest.approx((0.01, 0.005441, 0.018310), abs=1e-6)
    assert wilson(0, 0) == (0, 0, 1)
    assert wilson(0, 50).low == 0


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        (pyarrow.array([0, 1500], pyarrow.timestamp("ms")), ["1970-01-01T00:00:00", "1970-01-01T00:00:01.500000"]),
        (pyarrow.array([0, 1], pyarrow.date32()), ["1970-01-01", "1970-01-02"]),
        (pyarrow.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pyarrow.array(["1.50", "2.00"]).cast(pyarrow.decimal128(5, 2)), ["1.50", "2.00"]),
    ],
    ids=lambda value: str(getattr(value, "type", "texts")),
)
def test_typed_columns_are_compared_with_their_texts(diff, typed, texts):
    table, rows = pyarrow.table({"x": typed, "prediction": typed}), [{"x": one, "prediction": one} for one in texts]
    contents = {"parquet": table, "jsonl": rows}
    for old, new in (("parquet", "jsonl"), ("jsonl", "parquet"), ("parquet", "parquet")):
        found = diff(contents[old], contents[new], (old, new), ids=["x"])
        assert (found.matched, found.changed_rows) == (2, 0)


def test_rows_that_cannot_be_written_leave_nothing(tmp_path):
    path = tmp_path / "changes.csv"
    with full_disk(10), pytest.raises(ConfigurationError, match="--output: cannot write"):
        write_rows(pyarrow.table({"row": range(1000)}), str(path))
    assert not list(tmp_path.iterdir())
