"""Outputs are compared row by row, whatever their formats."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from full_disk import full_disk
from headrace.core.errors import ConfigurationError
from headrace.jobs.diff import diff_outputs, write_rows
from headrace.jobs.differences import wilson

Row = dict[str, Any]


def _written(folder: Path, name: str, rows: list[Row]) -> str:
    path = folder / name
    if name.endswith("jsonl"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif name.endswith("csv"):
        pyarrow.csv.write_csv(pyarrow.Table.from_pylist(rows), path)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def _of(*predictions: Any) -> list[Row]:
    return [{"id": f"r{place}", "prediction": prediction} for place, prediction in enumerate(predictions)]


@pytest.mark.parametrize("old", ["old.jsonl", "old.csv", "old.parquet"])
@pytest.mark.parametrize("new", ["new.jsonl", "new.csv", "new.parquet"])
def test_rows_are_matched_by_id_across_formats(tmp_path: Path, old: str, new: str) -> None:
    before = _of(1.5, 2.5, 3.5, 4.5)
    after = [{"id": "r9", "prediction": 0.5}, *reversed(_of(1.5, 2.5, 3.0))]
    found = diff_outputs(_written(tmp_path, old, before), _written(tmp_path, new, after), ids=["id"])
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
def test_rows_are_matched_by_place(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, old: list[Any], new: list[Any], changed: list[int]
) -> None:
    found = diff_outputs(
        _written(tmp_path, "old.jsonl", _of(*old)), _written(tmp_path, "new.jsonl", _of(*new)), columns=["prediction"]
    )
    assert found.rows.column("row").to_pylist() == [place + 1 for place in changed]
    assert found.changed_rows == len(changed)
    assert not recwarn.list


def test_ids_may_have_any_name_and_an_output_no_rows(tmp_path: Path) -> None:
    old = _written(tmp_path, "old.jsonl", [{"old": 1, "prediction": 1}])
    new = _written(tmp_path, "new.csv", [{"old": 1, "prediction": 2}])
    assert diff_outputs(old, new, ids=["old"]).changed_rows == 1
    (tmp_path / "none.csv").write_text("old,prediction\n")
    none = str(tmp_path / "none.csv")
    assert diff_outputs(none, new, ids=["old"]).rows.to_pylist() == [
        {"old": 1, "prediction_old": None, "prediction_new": 2}
    ]
    assert diff_outputs(old, none, ids=["old"]).only_old == 1


def test_objects_may_have_other_fields_or_be_missing(tmp_path: Path) -> None:
    old = _written(tmp_path, "old.jsonl", _of({"label": "a", "score": 0.5}, {"label": "b", "score": 0.5}))
    new = _written(tmp_path, "new.parquet", _of({"label": "a"}, {"label": "c"}))
    none = _written(tmp_path, "none.jsonl", _of(None, None))
    counts = [(column.name, column.changed) for column in diff_outputs(old, new).columns]
    assert counts == [("prediction.label", 1), ("prediction.score", 2)]
    assert diff_outputs(none, old).changed_rows == 2


def test_json_lines_without_rows_have_no_columns(tmp_path: Path) -> None:
    none, some = (_written(tmp_path, f"{name}.jsonl", rows) for name, rows in (("none", []), ("some", _of(1, 2))))
    assert diff_outputs(none, some, ids=["id"]).only_new == 2
    assert diff_outputs(some, none, ids=["id"]).only_old == 2
    for options in ({}, {"ids": ["id"]}, {"columns": ["other"]}):
        assert diff_outputs(none, none, **options).matched == 0
    exploded = _written(tmp_path, "exploded.csv", [{"id": 1, "prediction_a": 0.5}])
    assert diff_outputs(none, exploded, ids=["id"]).rows.column_names == ["id", "prediction_a_old", "prediction_a_new"]
    with pytest.raises(ConfigurationError, match=r"none.jsonl has 0 rows and .* 2, .*--id"):
        diff_outputs(none, some)


def test_numbers_within_the_tolerance_are_the_same(tmp_path: Path) -> None:
    old = _written(tmp_path, "old.jsonl", _of(1.0, 2.0))
    new = _written(tmp_path, "new.jsonl", _of(1.05, 2.2))
    assert diff_outputs(old, new, tolerance=0.1).changed_rows == 1


def test_what_changed_most_and_the_mean_have_intervals(tmp_path: Path) -> None:
    rng = random.Random(3)
    old = [rng.gauss(0, 1) for _ in range(400)]
    new = [value + rng.gauss(0.5, 0.1) for value in old]
    found = diff_outputs(_written(tmp_path, "old.csv", _of(*old)), _written(tmp_path, "new.csv", _of(*new)), ids=["id"])
    mean = found.columns[0].mean
    assert mean is not None
    assert mean.low < 0.5 < mean.high
    labels = [_written(tmp_path, f"{name}.jsonl", _of(*some)) for name, some in (("a", "xxyz"), ("b", "yyyz"))]
    assert list(diff_outputs(*labels).columns[0].moves) == [("x", "y", 2)]


def test_vectors_have_a_cosine_similarity(tmp_path: Path) -> None:
    found = diff_outputs(
        _written(tmp_path, "old.parquet", _of([1.0, 0.0], [1.0, 0.0])),
        _written(tmp_path, "new.jsonl", _of([2.0, 0.0], [0.0, 1.0])),
    )
    assert found.columns[0].cosine == pytest.approx((0.5, 0.0))
    assert found.changed_rows == 2


def test_columns_of_explode_are_compared_together(tmp_path: Path) -> None:
    old = [{"prediction_a": 0.1, "prediction_b": 0.9}, {"prediction_a": 0.5, "prediction_b": 0.5}]
    new = [{"prediction_a": 0.2, "prediction_b": 0.8}, {"prediction_a": 0.5, "prediction_b": 0.5}]
    found = diff_outputs(_written(tmp_path, "old.csv", old), _written(tmp_path, "new.csv", new))
    assert [(column.name, column.changed) for column in found.columns] == [("prediction_a", 1), ("prediction_b", 1)]
    assert found.changed_rows == 1


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        (_of(1, 2), _of(1), {}, r"2 rows .* 1, .*--id"),
        (_of(1, 2), _of(1, 2), {"ids": ["ID"]}, "no column 'ID'; did you mean 'id'"),
        (_of(1, 1), _of(1, 1), {"ids": ["prediction"]}, "2 rows with prediction = 1"),
        ([{"id": 1, "prediction": 1}], _of(1), {"ids": ["id"]}, "holds int64 in .* and string"),
        ([{"id": None, "prediction": 1}], _of(1), {"ids": ["id"]}, "rows without 'id'"),
        ([{"id": [1], "prediction": 1}], _of(1), {"ids": ["id"]}, "lists or objects in 'id'"),
        ([{"id": 1}], [{"id": 1}], {}, "--columns"),
        (_of(1), _of(1), {"tolerance": -1}, "tolerance"),
    ],
)
def test_what_cannot_be_compared_says_why(
    tmp_path: Path, old: list[Row], new: list[Row], options: Any, message: str
) -> None:
    paths = _written(tmp_path, "old.jsonl", old), _written(tmp_path, "new.jsonl", new)
    with pytest.raises(ConfigurationError, match=message):
        diff_outputs(*paths, **options)


@pytest.mark.parametrize("name", ["changes.csv", "changes.jsonl.gz", "changes.parquet"])
def test_changed_rows_are_written(tmp_path: Path, name: str) -> None:
    found = diff_outputs(
        _written(tmp_path, "old.jsonl", _of(1, 2, 3)), _written(tmp_path, "new.jsonl", _of(1, 5, 3)), ids=["id"]
    )
    write_rows(found.rows, str(tmp_path / name))
    again = diff_outputs(
        str(tmp_path / name), str(tmp_path / name), ids=["id"], columns=["prediction_old", "prediction_new"]
    )
    assert again.matched == 1
    assert {file.name for file in tmp_path.iterdir()} == {"old.jsonl", "new.jsonl", name}


def test_share_has_a_wilson_interval() -> None:
    assert wilson(10, 1000) == pytest.approx((0.01, 0.005441, 0.018310), abs=1e-6)
    assert wilson(0, 0) == (0, 0, 1)
    assert wilson(0, 50).low == 0


TYPED = [
    pyarrow.array([0, 1500], pyarrow.timestamp("ms")),
    pyarrow.array([0, 1], pyarrow.date32()),
    pyarrow.array(["a", "b"]).dictionary_encode(),
    pyarrow.array(["1.50", "2.00"]).cast(pyarrow.decimal128(5, 2)),
]
TEXTS = ["1970-01-01T00:00:00", "1970-01-01T00:00:01.500000"], ["1970-01-01", "1970-01-02"], "ab", ["1.50", "2.00"]


@pytest.mark.parametrize(("typed", "texts"), [*zip(TYPED, TEXTS, strict=True)], ids=[str(one.type) for one in TYPED])
def test_typed_columns_are_compared_with_their_texts(tmp_path: Path, typed: Any, texts: str | list[str]) -> None:
    old, new = (
        tmp_path / "old.parquet",
        _written(tmp_path, "new.jsonl", [{"x": one, "prediction": one} for one in texts]),
    )
    pyarrow.parquet.write_table(pyarrow.table({"x": typed, "prediction": typed}), old)
    for left, right in ((str(old), new), (new, str(old)), (str(old), str(old))):
        found = diff_outputs(left, right, ids=["x"])
        assert (found.matched, found.changed_rows) == (2, 0)


def test_rows_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    with full_disk(10), pytest.raises(ConfigurationError, match="--output: cannot write"):
        write_rows(pyarrow.table({"row": range(1000)}), str(path))
    assert not list(tmp_path.iterdir())
