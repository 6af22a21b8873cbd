"""A fitted model says which kinds of values its encoders know, and columns of another kind are refused."""

import pickle

import numpy
import pandas
import pyarrow
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from headrace import predict
from headrace.core.errors import ConfigurationError
from headrace.handlers.data_frames import refuse_other_kinds
from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas
from toys import inferences

FRAME = pandas.DataFrame(
    {
        "zip": ["00501", "10001", "94110", "00501"],
        "year": [2020, 2021, 2022, 2020],
        "active": [True, False, True, True],
        "age": [1.0, 2.0, 3.0, 4.0],
    }
)
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
    wrongs = {
        ("zip", "int"): r"column 'zip' holds numbers.* text there \('00501', .*--types zip=str",
        ("year", "str"): r"column 'year' holds text.* numbers there \(2020, .*--types year=int",
    }
    for (name, kind), message in wrongs.items():
        with pytest.raises(ConfigurationError, match=message):
            refuse_other_kinds(model, {**GOOD, name: kind})


def within(make):
    return lambda: make(make_pipeline(within_columns(["zip"]), LogisticRegression()))


@pytest.mark.parametrize(
    "make",
    [
        within(lambda inner: GridSearchCV(inner, {"logisticregression__C": [1, 2]}, cv=2)),
        within(lambda inner: CalibratedClassifierCV(inner, cv=2)),
        within(lambda inner: VotingClassifier([("one", inner)])),
        within(lambda inner: StackingClassifier([("one", inner)], cv=2)),
        within(TransformedTargetRegressor),
        lambda: make_pipeline(make_union(within_columns(["zip"])), LogisticRegression()),
        lambda: HistGradientBoostingClassifier(categorical_features=["zip"], max_iter=1),
    ],
    ids=["search", "calibrated", "voting", "stacking", "regressor", "union", "boosting"],
)
def test_models_within_models(make):
    model = make().fit(FRAME.drop(columns="active"), [0, 1, 1, 0])
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
    rows = [
        {name: missing if pandas.isna(value) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]
    handler = SklearnModelHandlerPandas(tmp_path / "model.pkl", method="transform")
    for batch in (rows, *([row] for row in rows)):
        expected = model.transform(frame.loc[[rows.index(row) for row in batch]])
        assert numpy.array_equal(inferences(predict(handler, batch)), expected)
