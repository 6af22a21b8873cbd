"""A table comes back with the predictions for its rows as columns, whatever happens to a row."""

from __future__ import annotations

import datetime

import numpy
import pandas
import polars
import pyarrow
import pytest
from sklearn.linear_model import LinearRegression

from headrace import SKIP, Budget, BudgetError, ConfigurationError, PredictionResult, Price, predict, predict_table
from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas
from metered import ASKED, Metered
from tables_of_all_types import Describes
from toys import Acting

ROWS = [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}, {"n": 3, "text": "c"}]
TABLES = [
    pandas.DataFrame(ROWS, index=[7, 5, 6]),
    pyarrow.Table.from_pylist(ROWS),
    pyarrow.RecordBatch.from_pylist(ROWS),
    polars.DataFrame(ROWS),
]

each_kind = pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)


def tenfold(batch):
    if 2 in batch:
        raise ValueError("two")
    return [PredictionResult(n, SKIP if n == 3 else n * 10, "model") for n in batch]


def columns_of(table):
    """The added columns as lists, null as None."""
    if isinstance(table, pandas.DataFrame):
        table = pyarrow.Table.from_pandas(table, preserve_index=False)
    table = table.to_arrow() if isinstance(table, polars.DataFrame) else table
    return {name: table.column(name).to_pylist() for name in ("prediction", "model_id", "outcome", "error")}


@each_kind
def test_every_row_has_its_outcome(table):
    found = predict_table(Acting(tenfold), table, columns="n", on_failure="mark")
    assert type(found) is type(table)
    assert found.shape == (3, 6)
    assert columns_of(found) == {
        "prediction": [10, None, None],
        "model_id": ["model", None, None],
        "outcome": ["predicted", "failed", "skipped"],
        "error": [None, "ValueError: two", None],
    }
    with pytest.raises(ValueError, match="two"):
        predict_table(Acting(tenfold), table, columns="n")


@each_kind
def test_columns_and_rows_of_the_table_stay(table):
    found = predict_table(Acting(), table, columns="text")
    if isinstance(table, pandas.DataFrame):
        pandas.testing.assert_frame_equal(found[["n", "text"]], table)
        assert list(table.columns) == ["n", "text"]
    else:
        assert found.select(["n", "text"]).equals(table)
    assert columns_of(found)["prediction"] == ["a", "b", "c"]
    none = predict_table(Acting(), table[:0] if isinstance(table, pandas.DataFrame) else table.slice(0, 0))
    assert columns_of(none) == {"prediction": [], "model_id": [], "outcome": [], "error": []}


MIXED = pandas.DataFrame(
    {
        "n": pandas.array([1, None, 1313, 4] * 10, "Int64"),
        "i": range(40),
        "text": [None, "a", "00501", "1E5"] * 10,
        "kind": pandas.Categorical(["a", "b"] * 20),
        "yes": [True, None, False, True] * 10,
        "day": [datetime.date(2026, 1, 2), None] * 20,
        "at": pandas.to_datetime(["2026-01-02", None] * 20),
        "list": [[1], []] * 20,
        "half": numpy.arange(40, dtype="float32") / 2,
    },
    index=range(40, 0, -1),
)


@pytest.mark.parametrize("make", [lambda frame: frame, pyarrow.Table.from_pandas], ids=["pandas", "arrow"])
@pytest.mark.parametrize("columns", [None, ["half", "text", "n"]])
def test_table_goes_to_a_model_of_frames_in_blocks_as_row_by_row(handler_of, make, columns):
    table = make(MIXED)
    sorted_alone = {"max_batch_size": 1, "length_fn": len}  # what is sorted goes row by row
    alone, blocks = (
        predict_table(
            handler_of(Describes(), SklearnModelHandlerPandas, **how), table, columns=columns, on_failure="mark"
        )
        for how in (sorted_alone, {})
    )
    assert columns_of(blocks) == columns_of(alone)
    assert columns_of(blocks)["outcome"].count("failed") == 10
    if isinstance(table, pandas.DataFrame):
        pandas.testing.assert_frame_equal(blocks[table.columns], table)


LINE = LinearRegression().fit([[0], [1]], [0, 1])


def test_data_frames_of_which_a_model_of_arrays_can_read_some_rows(handler_of):
    handler = handler_of(LINE)
    nan, integers = float("nan"), pandas.array([1, None, 3], "Int64")
    for values, bad in (([1, "x", 3.0, None], [1, 3]), ([1.0, nan], [1]), (integers, [1]), ([1 + 1j], [0])):
        found = predict_table(handler, pandas.DataFrame({"n": values}), on_failure="mark")
        assert [place for place, outcome in enumerate(found["outcome"]) if outcome == "failed"] == bad


def test_what_no_single_array_holds(handler_of):
    handler = handler_of(Describes(), SklearnModelHandlerPandas)
    table = pyarrow.table({"a": [1.5, 2], "t": pyarrow.array([1, 2], pyarrow.timestamp("ns"))})
    assert predict_table(handler, table, on_failure="mark")["outcome"].to_pylist() == ["predicted"] * 2
    sparse = pandas.DataFrame({"n": pandas.arrays.SparseArray([0.0, 1.0])})
    assert predict_table(handler_of(LINE), sparse)["prediction"].round().tolist() == [0, 1]


def test_a_lazy_frame_comes_back_as_one(handler_of):
    handler = handler_of(Describes(), SklearnModelHandlerPandas)
    found = predict_table(handler, polars.DataFrame(ROWS).lazy())
    assert isinstance(found, polars.LazyFrame)
    expected = predict_table(handler, pyarrow.Table.from_pylist(ROWS))["prediction"].to_pylist()
    assert found.collect()["prediction"].to_list() == expected
    assert list(predict(handler, polars.DataFrame(ROWS)))[2].inference == expected[2]


def test_predictions_in_a_data_frame_are_what_the_handler_made():
    vectors = [numpy.zeros(2), numpy.ones(2), numpy.ones(2)]
    found = predict_table(Acting(lambda batch: [vectors[n - 1] for n in batch]), TABLES[0], columns="n")
    assert all(one is other for one, other in zip(found["prediction"], vectors, strict=True))


DAY = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("values", "kind", "arrow_kind"),
    [
        ([1, 2, 2**53 + 1], "Int64", pyarrow.int64()),
        ([numpy.int64(1), numpy.int64(2), numpy.int64(3)], "Int64", pyarrow.int64()),
        ([True, False, True], "boolean", pyarrow.bool_()),
        ([0.5, 1.5, 2.5], "float64", pyarrow.float64()),
        (["a", "b", "c"], pandas.Series(["a"]).dtype, pyarrow.string()),
        ([[1], [2, 3], []], "object", pyarrow.list_(pyarrow.int64())),
        ([{"a": 1}, {"a": 2}, {"a": 3}], "object", pyarrow.struct({"a": pyarrow.int64()})),
        ([DAY] * 3, pandas.Series([DAY]).dtype, pyarrow.string()),
        ([1, "x", [2]], "object", pyarrow.string()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_predictions_keep_their_kind_whichever_rows_fail(values, kind, arrow_kind):
    def fails(*numbers):
        def predict(batch):
            if bad := set(numbers).intersection(batch):
                raise ValueError(bad)
            return [values[n - 1] for n in batch]

        return Acting(predict)

    frame, arrow = (predict_table(fails(), table, columns="n")["prediction"] for table in TABLES[:2])
    assert frame.dtype == pandas.Series(values).dtype
    assert arrow.type == arrow_kind
    for bad in (1, 2):
        left = [value for number, value in enumerate(values, 1) if number != bad]
        frame, arrow = (
            predict_table(fails(bad), table, columns="n", on_failure="mark")["prediction"] for table in TABLES[:2]
        )
        assert frame.dtype == kind
        assert frame.isna().tolist() == [number == bad for number in (1, 2, 3)]
        assert frame[frame.notna()].tolist() == left
        assert arrow.type == arrow_kind
        assert arrow.null_count == 1
    assert predict_table(fails(1, 2, 3), TABLES[0], columns="n", on_failure="mark")["prediction"].isna().all()


def test_prediction_that_arrow_cannot_hold_fails_alone():
    endless = []
    endless.append(endless)
    handler = Acting(lambda batch: [endless if n == 2 else n for n in batch])
    found = columns_of(predict_table(handler, TABLES[1], columns="n", on_failure="mark"))
    assert found["outcome"] == ["predicted", "failed", "predicted"]
    assert "cannot be written: it contains itself" in found["error"][1]
    with pytest.raises(ValueError, match="contains itself"):
        predict_table(handler, TABLES[1], columns="n")


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (ROWS, {}, "predict_table takes a pandas.DataFrame, .* not a list; of other rows, predict yields predictions"),
        (pandas.DataFrame({"error": [1]}), {}, "has a column 'error', which predict_table adds; rename it"),
        (TABLES[0], {"handler": SklearnModelHandlerPandas}, "is no model handler"),
        (TABLES[0], {"handler": None}, "is no model handler"),
        (TABLES[0], {"on_failure": "yield"}, "on_failure must be 'raise' or 'mark', not 'yield'"),
        (TABLES[0], {"columns": "m"}, "no column 'm'"),
        (TABLES[0], {"batch_size": 4}, "predict_table has no argument 'batch_size': use max_batch_size=... of the mod"),
        (TABLES[0], {"ordered": False}, "predict_table has no argument 'ordered'; it has batching, "),
    ],
)
def test_mistakes_are_refused(table, options, message):
    with pytest.raises(ConfigurationError, match=message):
        predict_table(**{"handler": Acting(), "table": table, **options})


@each_kind
@pytest.mark.parametrize("result", [lambda n: PredictionResult(n, n / 2), lambda n: n / 2], ids=["result", "bare"])
def test_rows_that_fail_are_answered_by_the_fallback(table, result):
    def half(batch):
        return list(map(result, batch))

    found = predict_table(Acting(tenfold, max_batch_size=1), table, columns="n", fallback=Acting(half))
    assert columns_of(found) == {
        "prediction": [10.0, 1.0, None],
        "model_id": ["model", "fallback", None],
        "outcome": ["predicted", "predicted", "skipped"],
        "error": [None, None, None],
    }


@pytest.mark.parametrize("isolate", [False, True])
def test_rows_keep_their_order_whichever_of_several_fallbacks_answers(isolate):
    def but(divisor, added):
        def act(batch):
            if any(n % divisor == 0 for n in batch):
                raise ValueError(f"a multiple of {divisor}")
            return [PredictionResult(n, n + added) for n in batch]

        return Acting(act, min_batch_size=7, max_batch_size=7)

    table = pandas.DataFrame({"n": range(1, 61)})
    options = {"fallback": [but(3, 200), but(5, 300)], "on_failure": "mark", "isolate": isolate}
    found = predict_table(but(2, 100), table, columns="n", **options)
    assert found["n"].tolist() == [*range(1, 61)]
    for n, prediction, who, outcome in found[["n", "prediction", "model_id", "outcome"]].itertuples(index=False):
        able = [(100, "Acting"), (200, "fallback"), (300, "fallback2")]
        left = [one for one, divisor in zip(able, (2, 3, 5), strict=True) if n % divisor]
        assert (outcome, prediction - n if left else None, who if left else None) == (
            ("predicted", *left[0]) if left else ("failed", None, None)
        )


@each_kind
def test_rows_that_the_cache_knows_are_not_asked_for_again(table, tmp_path):
    cache = str(tmp_path / "cache")
    for asked in ([1, 2], [3], []):
        ASKED.clear()
        part = table[: max(asked)] if asked and isinstance(table, pandas.DataFrame) else table
        part = table.slice(0, max(asked)) if asked and not isinstance(table, pandas.DataFrame) else part
        found = predict_table(Metered(), part, columns="n", cache=cache)
        assert asked == sorted(ASKED)
    assert columns_of(found)["prediction"] == [2, 4, 6]


@pytest.mark.parametrize("cache", [False, True])
def test_spent_budget_marks_the_rows_that_are_left_out(cache, tmp_path):
    options = {"cache": str(tmp_path / "cache")} if cache else {}
    table, budget = pandas.DataFrame({"n": range(100, 500)}), Budget(20, prices={"m": Price(request=1)})
    ASKED.clear()
    found = predict_table(Metered(), table, columns="n", on_failure="mark", budget=budget, **options)
    done, left = (found[found["outcome"] == outcome] for outcome in ("predicted", "failed"))
    assert 20 <= len(done) == len(ASKED) < 400 == len(done) + len(left)
    assert done["prediction"].tolist() == [2 * n for n in done["n"]]
    assert left["error"].str.startswith("headrace.core.errors.BudgetError: the budget of 20 is spent: 2").all()
    with pytest.raises(BudgetError, match="is spent"):
        predict_table(Metered(), table, columns="n", budget=budget)


def scores(batch):
    if 2 in batch:
        raise ValueError("two")
    return [{"good": n / 2, "of": n} for n in batch]


@each_kind
def test_values_of_predictions_become_columns(table):
    found = predict_table(Acting(scores), table, columns="n", on_failure="mark", explode=True)
    assert type(found) is type(table)
    if isinstance(found, pandas.DataFrame):
        assert found["prediction_of"].dtype == "Int64"
        found = pyarrow.Table.from_pandas(found, preserve_index=False)
    found = found.to_arrow() if isinstance(found, polars.DataFrame) else found
    assert found.schema.names[2:] == ["prediction_good", "prediction_of", "model_id", "outcome", "error"]
    assert found.column("prediction_good").to_pylist() == [0.5, None, 1.5]
    assert found.column("prediction_of").to_pylist() == [1, None, 3]
    with pytest.raises(ConfigurationError, match="there is a column 'prediction_of'"):
        predict_table(Acting(scores), found.select(["n", "prediction_of"]), columns="n", explode=True)
