"""Rows make frames in which each has the values and dtypes that it would have alone.

A fitted model says which kinds of values its encoders know, and columns of another kind are refused.
"""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from typing import NamedTuple

import apache_beam
import numpy
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from headrace import ConfigurationError, PredictionCountError, predict
from headrace.handlers.data_frames import bytes_of, examples_of, frame_of_rows, predict_examples, refuse_other_kinds
from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas
from headrace.rows.blocks import TypedRow
from toys import inferences

UTC = datetime.timezone.utc
VALUES = [
    *(1, 2**63, 2**70, -(2**63), True, 0.5, float("nan"), float("inf"), None, "", "text", b"bytes"),
    *(datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3), datetime.datetime(2026, 1, 2, tzinfo=UTC)),
    *(datetime.time(3), datetime.timedelta(1), Decimal("1.50"), [1, 2], [], {"a": 1}, (1,), numpy.float32(0.5)),
]
TYPES = ["int", "float", "str", "bool", "date", "datetime", "mixed", "list"]


def seen(frame):
    """What a model sees of each row: columns, dtypes and values."""
    dtypes = list(map(str, frame.dtypes))
    return [repr([*zip(frame.columns, dtypes, row, strict=True)]) for row in frame.itertuples(index=False)]


def typed(values):
    """Rows of columns a and b that are known to hold what their types say."""
    return [TypedRow({"a": a, "b": b}, {"a": kind}) for a, b, kind in values]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2), min_size=1, max_size=20), st.sampled_from([None, *TYPES]))
def test_each_row_is_what_it_is_alone(pairs, kind):
    rows = typed((*pair, kind) for pair in pairs)
    assert predict_examples(rows, seen) == [text for row in rows for text in seen(frame_of_rows([row]))]


@pytest.mark.parametrize("kind", ["int64", "int8", "float32", "bool", "string", "date32[day]", "timestamp[us, tz=UTC]"])
def test_a_record_batch_is_what_its_rows_are(kind):
    made = {"bool": True, "string": "x", "date32[day]": VALUES[12], "timestamp[us, tz=UTC]": VALUES[14]}
    types = {"date32[day]": pyarrow.date32(), "timestamp[us, tz=UTC]": pyarrow.timestamp("us", "UTC")}
    column = pyarrow.array([made.get(kind, 1), None] * 4, types.get(kind, kind))
    batch = pyarrow.record_batch({"a": column, "b": range(8), "c": [True, True, None, None] * 2})
    wide = batch.set_column(0, "a", column.cast({"int8": "int64", "float32": "float64"}.get(kind, column.type)))
    names = {"int64": "int", "int8": "int", "float32": "float", "string": "str", "timestamp[us, tz=UTC]": "datetime"}
    alone = [predict_examples([wide.slice(place, 1)], seen)[0] for place in range(8)]
    assert list(predict_examples([wide], seen)) == alone
    if "timestamp" not in kind:
        rows = [TypedRow(row, {"a": names.get(kind, kind)}) for row in wide.to_pylist()]
        assert predict_examples(rows, seen) == alone


class Person(NamedTuple):
    age: int
    city: str


def test_rows_of_all_kinds():
    rows = [{"age": 1, "city": "Bern"}, Person(1, "Bern"), apache_beam.Row(age=1, city="Bern")]
    frame = pandas.DataFrame([{"age": 1, "city": "Bern"}])
    assert len(set(predict_examples([*rows, frame], seen))) == len(set(predict_examples(rows, seen))) == 1
    assert all(frame.equals(made) for made in examples_of([*rows, frame], rows_too=False))
    assert examples_of(rows, rows_too=True) == rows


def test_frames_of_several_kinds():
    frame = pandas.DataFrame({"a": [1], "b": ["x"]})
    frames = [frame, frame.astype({"a": float}), frame[["b", "a"]], frame.assign(c=1), frame, frame.astype("category")]
    assert predict_examples(frames, seen) == [seen(one)[0] for one in frames]


def test_a_batch_of_frames_is_one_call():
    sizes = []
    frames = [pandas.DataFrame({"a": [n], "b": ["x"]}) for n in range(5)]
    predict_examples(frames, lambda frame: sizes.append(len(frame)) or list(frame["a"]))
    predict_examples([{"a": n} for n in range(5)], lambda frame: sizes.append(len(frame)) or list(frame["a"]))
    numbers = typed((a, 0, "float") for a in (1, 1.5, None, 2, -3))
    predict_examples(numbers, lambda frame: sizes.append(len(frame)) or list(frame["a"]))
    assert sizes == [5, 5, 5]


def test_predictions_come_back_in_the_order_of_the_rows_and_surplus_ones_are_refused():
    batch = pyarrow.record_batch({"a": [1, None, 3, None], "n": range(4)})
    found = predict_examples([batch], lambda frame: frame[["n", "n"]].to_numpy())
    assert [row.tolist() for row in found] == [[n, n] for n in range(4)]
    with pytest.raises(PredictionCountError):
        predict_examples([batch], lambda frame: [0] * (len(frame) + 1))


def test_bytes_of_many_are_estimated():
    one = {"a": 1, "b": "x" * 1000}
    assert bytes_of([one] * 1000) == 1000 * bytes_of([one])
    assert bytes_of([pandas.DataFrame([one])]) == bytes_of([one])
    assert bytes_of([]) == 0


FRAME = pandas.DataFrame({"zip": ["00501", "10001", "94110", "00501"], "year": [2020, 2021, 2022, 2020]})
FRAME = FRAME.assign(active=[True, False, True, True], age=[1.0, 2.0, 3.0, 4.0])
ARROW_TEXT = pandas.ArrowDtype(pyarrow.large_string())
GOOD = {"zip": "str", "year": "int", "active": "bool", "age": "float", "other": "str"}


def within_columns(columns):
    encoder = OneHotEncoder(handle_unknown="ignore")
    return ColumnTransformer([("coded", encoder, columns), ("scaled", StandardScaler(), ["age"])])


def behind_an_imputer(columns):
    encoder = make_pipeline(SimpleImputer(strategy="most_frequent"), OrdinalEncoder())
    return ColumnTransformer([("gone", "drop", ["age"]), ("coded", encoder, columns)], remainder="passthrough")


def fitted(transformer):
    return make_pipeline(transformer, LogisticRegression()).fit(FRAME, [0, 1, 0, 1])


CHOSEN = [["zip", "year", "active"], slice(0, 3), make_column_selector("^(?:zip|year|active)$")]


@pytest.mark.parametrize("columns", CHOSEN, ids=["names", "slice", "selector"])
@pytest.mark.parametrize("transformer", [within_columns, behind_an_imputer])
def test_columns_of_another_kind_are_refused(transformer, columns):
    model = fitted(transformer(columns))
    refuse_other_kinds(model, GOOD)
    refuse_other_kinds(model, dict(FRAME.dtypes))
    for message, wrong in {
        r"column 'zip' holds numbers.* text there \('00501', .*--types zip=str": {"zip": "int"},
        r"column 'year' holds text.* numbers there \(2020, .*--types year=int": {"year": "str"},
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            refuse_other_kinds(model, GOOD | wrong)


TEXTS = make_pipeline(within_columns(["zip"]), LogisticRegression())
WITHIN = [
    GridSearchCV(TEXTS, {"logisticregression__C": [1, 2]}, cv=2),
    CalibratedClassifierCV(TEXTS, cv=2),
    VotingClassifier([("one", TEXTS)]),
    StackingClassifier([("one", TEXTS)], cv=2),
    TransformedTargetRegressor(TEXTS),
    make_pipeline(make_union(within_columns(["zip"])), LogisticRegression()),
    HistGradientBoostingClassifier(categorical_features=["zip"], max_iter=1),
]


@pytest.mark.parametrize("model", WITHIN, ids=lambda model: type(model).__name__)
def test_models_within_models(model):
    model.fit(FRAME.drop(columns="active"), [0, 1, 1, 0])
    refuse_other_kinds(model, GOOD)
    with pytest.raises(ConfigurationError, match="column 'zip' holds numbers"):
        refuse_other_kinds(model, GOOD | {"zip": "int"})


def test_dtypes_of_frames_are_kinds():
    model = OneHotEncoder().fit(FRAME[["zip"]])
    for good in (FRAME["zip"], FRAME["zip"].astype("category"), FRAME["zip"].astype(ARROW_TEXT)):
        refuse_other_kinds(model, {"zip": good.dtype})
    with pytest.raises(ConfigurationError, match="column 'year' holds text"):
        refuse_other_kinds(OneHotEncoder().fit(FRAME[["year"]]), {"year": ARROW_TEXT})
    with pytest.raises(ConfigurationError, match=r"on booleans there \(False, True, .*--types active=bool"):
        refuse_other_kinds(OneHotEncoder().fit(FRAME[["active"]]), {"active": "str"})
    for wrong in (FRAME["year"], FRAME["year"].astype("Int64"), FRAME["year"].astype("category"), FRAME["active"]):
        with pytest.raises(ConfigurationError, match="column 'zip' holds"):
            refuse_other_kinds(model, {"zip": wrong.dtype})


def test_what_is_not_known_is_not_judged():
    mixed = OneHotEncoder().fit(pandas.DataFrame({"zip": ["00501", None, 7]}, dtype=object).fillna("x").map(str))
    refuse_other_kinds(mixed, {"zip": "mixed", "year": "int"})
    refuse_other_kinds(LogisticRegression().fit(FRAME[["age"]], [0, 1, 0, 1]), {"age": "str"})
    refuse_other_kinds(fitted(within_columns(["zip"])), {})
    refuse_other_kinds("no estimator", GOOD)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_what_is_missing_in_a_row_is_of_the_type_that_the_model_was_fitted_on(tmp_path, missing):
    frame = pandas.DataFrame({"zip": ["00501", None, "94110", None], "year": [2020.0, 2021.0, None, None]})
    encoder = ColumnTransformer([("texts", OrdinalEncoder(), ["zip"]), ("years", OrdinalEncoder(), ["year"])])
    model = make_pipeline(encoder, SimpleImputer(strategy="constant", fill_value=9)).fit(frame)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    rows = frame.astype(object).where(frame.notna(), missing).to_dict("records")
    handler = SklearnModelHandlerPandas(tmp_path / "model.pkl", method="transform")
    for batch in (rows, *([row] for row in rows)):
        expected = model.transform(frame.loc[[rows.index(row) for row in batch]])
        assert numpy.array_equal(inferences(predict(handler, batch)), expected)
