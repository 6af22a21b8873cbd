"""Columns of all types, in frames, and vectors: the same comes of them as row by row, each row alone."""

import datetime
import json

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from headrace.core.columns import Takes
from headrace.core.conversion import column_numbers
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.jobs import reading
from tables_of_all_types import OUTPUTS, Describes, parquet

ODD_VECTORS = [[], None, [1.5], [1, 2], [1.5, None], [0.25, 13.5], [13.0, 1.5], [1e39, 0.5]]
VECTORS = [[n / 4, n / 8] if n % 10 else ODD_VECTORS[n // 10 % 8] for n in range(160)]


@pytest.mark.parametrize("output", [*OUTPUTS, "out.csv"])
def test_vectors_of_json_lines(both_ways, tmp_path, output):
    lines = [
        json.dumps({"a": vector, "n": n, "b": [n, n + 1][: n % 9], "c": [] if n % 7 else None})
        for n, vector in enumerate(VECTORS)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    both_ways(tmp_path / "in.jsonl", columns="a", output=output)


@pytest.mark.parametrize("output", [*OUTPUTS, "out.csv"])
def test_vectors_of_parquet(both_ways, tmp_path, output, handler_of):
    for number, kind in enumerate((pyarrow.list_(pyarrow.float32()), pyarrow.large_list(pyarrow.float64()))):
        parquet(tmp_path / f"{number}.parquet", a=pyarrow.array(VECTORS, kind))
    both_ways(tmp_path / "?.parquet", columns="a", output=output)
    fixed = pyarrow.array([[n / 4, n / 8] for n in range(100)], pyarrow.list_(pyarrow.float64(), 2))
    path = parquet(tmp_path / "fixed.parquet", a=fixed, b=range(100))
    both_ways(path, columns="a", output=output)
    three = handler_of(LinearRegression().fit([[0, 0, 0], [1, 1, 2]], [0, 1]))
    both_ways(path, handler=three, output=output)


def test_frames_may_hold_what_arrays_may_not(both_ways, tmp_path, handler_of):
    rows = pandas.DataFrame({"a": range(-25, 25), "b": range(-20, 30)})
    model = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=2).fit(rows, rows["a"] > 0)
    numbers = [[None, float("nan"), 1e300, n][n % 4] if n % 30 == 0 else n / 3 for n in range(300)]
    path = parquet(tmp_path / "in.parquet", b=list(range(300)), a=numbers)
    _, _, predictions, _ = both_ways(path, handler=handler_of(model, SklearnModelHandlerPandas))
    assert predictions == 300


@pytest.fixture
def describing(handler_of):
    """A handler of a model that describes the frames that it is given."""
    return handler_of(Describes(), SklearnModelHandlerPandas)


@pytest.mark.parametrize("output", OUTPUTS)
def test_each_row_of_a_frame_has_the_types_that_it_has_alone(both_ways, good, describing, output, tmp_path):
    few = tmp_path / "few.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(good).slice(1250, 80), few)
    _, letters, predictions, _ = both_ways(few, columns=["*"], handler=describing, alone=True, output=output)
    assert (len(letters), predictions) == (1, 79)


@pytest.mark.parametrize("output", [*OUTPUTS, "out.csv"])
def test_probabilities_are_lists_of_numbers(both_ways, good, handler_of, output):
    tree = DecisionTreeClassifier().fit([[0, 0], [1, 1], [0, 0]], [0, 1, 1])
    handler = handler_of(tree, method="predict_proba")
    both_ways(good, handler=handler, keep=["id"], output=output)


def test_frames_of_csv(both_ways, tmp_path, describing):
    lines = [f"{n},{n / 8},{n},{'t' if n % 5 else ''},{n / 2}" for n in range(80)]
    odd = ["x,1,2,,3", '7,1.5,2,"two\nlines",1', "7,,,,", "7,1", "7,nan,1,t,1", "7,1e400,1,t,1", "07,1,1,t,1"]
    (tmp_path / "1.csv").write_text("\n".join(["id,a,b,text,extra", *lines, *odd, *lines]))
    (tmp_path / "2.csv").write_text("id,a,b,text,extra\n1,,2,,5\n,2.5,,x,\n")
    (tmp_path / "3.csv").write_text("id,a,b,more\n1,2,3,4\n")
    both_ways(tmp_path / "*.csv", columns=["*"], handler=describing, alone=True)


def test_files_whose_columns_differ_in_what_a_model_does_not_see(both_ways, tmp_path, describing):
    for number, nullable in enumerate((True, False)):
        field = pyarrow.field("a", pyarrow.int64(), nullable=nullable, metadata={"file": str(number)})
        batch = pyarrow.record_batch([pyarrow.array(range(50))], schema=pyarrow.schema([field]))
        pyarrow.parquet.write_table(pyarrow.Table.from_batches([batch]), tmp_path / f"{number}.parquet")
    _, letters, predictions, _ = both_ways(tmp_path / "*.parquet", columns="a", handler=describing)
    assert (letters, predictions) == ([], 100)


JSON_ROWS = (
    [{"i": n, "f": n / 4, "t": f"t{n}", "b": n % 2 == 0, "v": [n / 2, 1.5], "o": {"x": n}} for n in range(80)]
    + [
        {"i": n, "f": [n, None, n / 4][n % 3], "t": [None, "x"][n % 2], "b": True, "v": None, "o": {}}
        for n in range(80)
    ]
    + [{"i": None, "f": None, "t": None, "b": None, "v": [], "o": None} for n in range(80)]
    + [{"i": 1, "f": 1313, "t": "x"}, {"i": 1, "f": 0, "t": "x", "b": 1313, "v": 1, "o": 2}, {"prediction": 1}, 7]
    + [{"i": 2**63, "f": 2**70, "t": 7, "b": "x", "v": "x", "o": [1], "more": 1}]
)


def test_frames_of_json_lines(both_ways, tmp_path, describing):
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in JSON_ROWS))
    _, letters, predictions, _ = both_ways(tmp_path / "in.jsonl", columns=["*"], handler=describing, alone=True)
    assert len(letters) == 4
    assert predictions == len(JSON_ROWS) - 4


class WithMissing(SklearnModelHandlerNumpy):
    """Gives its model NaN for missing numbers, as XGBoost's handlers do."""

    takes = Takes(missing=True)

    def run_columns(self, columns, model, inference_args=None):  # as equal to rows
        return super().run_columns(columns, model, inference_args)

    def example_from_row(self, row):
        values = ([value] if value != value else column_numbers("n", value) for value in map(or_nan, row.values()))
        return numpy.array([number for some in values for number in some])


def or_nan(value):
    return float("nan") if value is None else value


def test_missing_numbers_are_no_rows_of_their_own_where_a_model_takes_them(both_ways, tmp_path, handler_of):
    rows = [[n, 2 * n] if n % 9 else [or_nan(None)] * 2 for n in range(100)]
    handler = handler_of(DecisionTreeRegressor(max_depth=3).fit(rows, list(range(100))), WithMissing)
    numbers = [[None, float("nan"), float("inf"), 1e39][n // 10 % 4] if n % 10 == 0 else n / 3 for n in range(400)]
    whole = [None if n % 7 == 0 else n for n in range(400)]
    _, letters, _, _ = both_ways(parquet(tmp_path / "in.parquet", a=numbers, b=whole), handler=handler)
    assert len(letters) == 20  # infinite, or beyond the floats of trees
    lines = [f"{n / 2 if n % 5 else ''},{n if n % 3 else ''}" for n in range(300)]
    (tmp_path / "in.csv").write_text("\n".join(["a,b", *lines]))
    _, letters, _, _ = both_ways(tmp_path / "in.csv", handler=handler)
    assert not letters


def test_nulls_of_columns_whose_type_the_first_rows_do_not_say(both_ways, tmp_path, describing, monkeypatch):
    rows = [{"a": 1, "s": None, "n": None} for _ in range(80)]
    monkeypatch.setattr(reading, "_SAMPLED_BYTES", 80 * len(repr(rows[0])))
    rows += [{"a": n, "s": [None, "x"][n % 2], "n": [None, 7][n % 2]} for n in range(80)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    both_ways(tmp_path / "in.jsonl", columns=["*"], handler=describing, alone=True)


def test_nulls_of_columns_of_many_types(both_ways, tmp_path, describing):
    columns = {
        "moment": pyarrow.array([None, datetime.datetime(2026, 1, 2)] * 9, pyarrow.timestamp("us", "UTC")),
        "nanoseconds": pyarrow.array([datetime.datetime(2026, 1, 2), None] * 9, pyarrow.timestamp("ns")),
        "large": [None, 2**60 + 1] * 9,
        "unsigned": pyarrow.array([2**63 + 1, None] * 9, pyarrow.uint64()),
        "day": [None, datetime.date(2026, 1, 2)] * 9,
        "yes": [True, None] * 9,
    }
    both_ways(parquet(tmp_path / "in.parquet", **columns), columns=["*"], handler=describing, alone=True)


def test_whole_numbers_that_a_float_rounds_are_no_failures(both_ways, tmp_path, describing):
    parquet(tmp_path / "1.parquet", a=[1.5, 2.5])
    parquet(tmp_path / "2.parquet", a=[12345678901234567, 2])
    _, letters, predictions, _ = both_ways(tmp_path / "*.parquet", columns="a", handler=describing)
    assert (letters, predictions) == ([], 4)


class Dates(BaseEstimator):
    """Predicts a moment for each row, as arrays of numpy hold it."""

    def predict(self, rows):
        return numpy.datetime64("2021-01-01", "ns") + numpy.asarray(rows)[:, 0].astype("timedelta64[s]")


@pytest.mark.parametrize("output", OUTPUTS)
def test_predicted_moments_are_text(both_ways, tmp_path, output, handler_of):
    path = parquet(tmp_path / "in.parquet", a=[0, 90], b=[0, 0])
    found, *_ = both_ways(path, handler=handler_of(Dates()), output=output)
    assert "2021-01-01T00:00:00" in str(found)
    assert "2021-01-01T00:01:30" in str(found)
