"""Pickled models of LightGBM and XGBoost know their columns, and get categories for text."""

from __future__ import annotations

import math
import pickle

import lightgbm
import numpy
import pandas
import pytest
import xgboost

from headrace import ConfigurationError, predict
from headrace.cli.main import main
from headrace.core.model_files import ModelFile, recognise
from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas
from headrace.testing import nearly_equal
from toys import inferences

pytestmark = pytest.mark.large

FRAME = pandas.DataFrame({"km": numpy.arange(60.0), "colour": ["red", "blue", "grey"] * 20, "id": 7})
FITTED = FRAME[["km", "colour"]].astype({"colour": "category"})
LABELS = (FRAME["km"] > 20) & (FRAME["colour"] != "red")


def of_lightgbm(frame):
    return lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, min_child_samples=2, verbose=-1).fit(frame, LABELS)


def of_xgboost(frame):
    return xgboost.XGBClassifier(n_estimators=5, n_jobs=1, enable_categorical=True).fit(frame, LABELS)


def handler_of(model, folder):
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    return SklearnModelHandlerPandas(folder / "model.pkl")


@pytest.mark.parametrize("fit", [of_lightgbm, of_xgboost])
def test_text_predicts_as_the_categories_that_the_model_was_fitted_on(tmp_path, fit):
    model = fit(FITTED)
    expected = model.predict(FITTED).astype(int)
    handler = handler_of(model, tmp_path)
    rows = FRAME.to_dict("records")
    assert numpy.array_equal(inferences(predict(handler, rows)), expected)
    assert numpy.array_equal([inferences(predict(handler, [row]))[0] for row in rows[:3]], expected[:3])
    FRAME.to_csv(tmp_path / "cars.csv", index=False)
    options = ["--model", str(tmp_path / "model.pkl"), "--output", str(tmp_path / "out.csv")]
    assert main(["run", str(tmp_path / "cars.csv"), *options]) == 0
    assert numpy.array_equal(pandas.read_csv(tmp_path / "out.csv")["prediction"].astype(int), expected)


CODES = FITTED.assign(colour=FRAME["colour"].map({"red": 30, "blue": 10, "grey": 20}).astype("category"))
ODD = [
    {"colour": "blue", "km": None},
    {"colour": None, "km": 30.0},
    {"colour": math.nan, "km": 30.0},
    {"km": 30.0, "colour": "grey", "id": 3},
    {"id": "x", "colour": "grey", "km": 30},
]


@pytest.mark.parametrize("fit", [of_lightgbm, lambda frame: of_lightgbm(frame).booster_, of_xgboost])
@pytest.mark.parametrize("fitted", [FITTED, CODES])
def test_missing_values_and_columns_in_any_order_predict_as_a_frame_by_hand(tmp_path, fit, fitted):
    model = fit(fitted)
    codes = fitted is CODES
    rows = [{**row, "colour": {"blue": 10, "grey": 20}.get(row["colour"])} for row in ODD] if codes else ODD
    by_hand = pandas.DataFrame(rows)[["km", "colour"]].astype({"km": float, "colour": fitted["colour"].dtype})
    expected = list(model.predict(by_hand))
    handler = handler_of(model, tmp_path)
    assert nearly_equal(inferences(predict(handler, rows)), expected)
    assert nearly_equal([inferences(predict(handler, [row]))[0] for row in rows], expected)


def test_text_needs_a_pickle_that_knows_its_categories(tmp_path):
    """The codes of a batch's own categories are not those of the model."""
    codes = numpy.column_stack([FRAME["km"], [2, 0, 1] * 20])
    model = xgboost.XGBClassifier(n_estimators=2, enable_categorical=True, feature_types=["q", "c"]).fit(codes, LABELS)
    model.get_booster().feature_names = ["km", "colour"]
    with pytest.raises(ValueError, match=r"'colour' holds text, and the model has no names of categories; save it"):
        list(predict(handler_of(model, tmp_path), FRAME.to_dict("records")))


@pytest.mark.parametrize("fit", [of_lightgbm, of_xgboost])
def test_names_of_columns_may_be_numbers(tmp_path, fit):
    frame = FRAME[["km", "colour"]].set_axis([0, 1], axis=1)
    model = fit(frame.astype({1: "category"}))
    found = predict(handler_of(model, tmp_path), [{1: "blue", "id": 3, 0: n} for n in range(30)])
    expected = model.predict(pandas.DataFrame({0: range(30), 1: "blue"}).astype({1: FITTED["colour"].dtype}))
    assert nearly_equal(inferences(found), list(expected))


def test_a_model_of_lightgbm_names_its_columns_unless_it_was_fitted_on_an_array(tmp_path):
    path = tmp_path / "model.pkl"
    for model in (of_lightgbm(FITTED), of_lightgbm(FITTED).booster_):
        path.write_bytes(pickle.dumps(model))
        known = recognise(ModelFile(str(path)))
        assert (known.handler, known.columns) == ("sklearn-pandas", ("km", "colour"))
    path.write_bytes(pickle.dumps(of_lightgbm(FRAME[["km"]].to_numpy())))
    with pytest.raises(ConfigurationError, match="which does not show whether it takes frames or arrays"):
        recognise(ModelFile(str(path)))


def test_columns_of_one_name_are_refused(tmp_path):
    twice = pandas.DataFrame([[1.0, 2.0, "red"]], columns=["km", "km", "colour"])
    with pytest.raises(ValueError, match="two columns are named 'km'"):
        list(predict(handler_of(of_lightgbm(FITTED), tmp_path), [twice]))


def test_the_command_line_finds_columns_whose_names_have_spaces(tmp_path, capsys):
    """LightGBM writes an underscore for each."""
    frame = FRAME.rename(columns={"km": "km driven"})
    model = of_lightgbm(FITTED.rename(columns={"km": "km driven"}))
    handler_of(model, tmp_path)
    frame.to_csv(tmp_path / "cars.csv", index=False)
    options = ["--model", str(tmp_path / "model.pkl"), "--output", str(tmp_path / "out.csv")]
    assert main(["run", str(tmp_path / "cars.csv"), *options]) == 0
    expected = model.predict(FITTED).astype(int)
    assert numpy.array_equal(pandas.read_csv(tmp_path / "out.csv")["prediction"].astype(int), expected)
    assert main(["run", str(tmp_path / "cars.csv"), *options, "--columns", "colour", "--dry-run"]) == 2
    assert "wants 'km_driven', too" in capsys.readouterr().err
