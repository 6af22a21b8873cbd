"""XGBoost's models of text and numbers: rows in a pipeline and in files predict as a frame of all by hand."""

from __future__ import annotations

import collections
import math
from functools import partial

import numpy
import pandas
import pytest
import xgboost

from headrace import predict
from headrace.cli.main import main
from headrace.handlers.xgboost_inference import XGBoostModelHandlerPandas
from headrace.testing import nearly_equal
from toys import infer, inferences

pytestmark = pytest.mark.large

CARS = [{"colour": colour, "age": age, "km": 1.0 * km} for km in range(20) for colour, age in (("red", 1), ("blue", 3))]


@pytest.fixture(scope="module")
def cars(tmp_path_factory):
    """A model of text and numbers, some of them missing; its path."""
    path = str(tmp_path_factory.mktemp("cars") / "cars.ubj")
    frame = pandas.DataFrame(CARS).astype({"colour": "category"})
    model = xgboost.XGBClassifier(n_estimators=3, n_jobs=1, enable_categorical=True).fit(
        frame, frame["km"] * frame["age"] > 10
    )
    model.save_model(path)
    return model, path


Car = collections.namedtuple("Car", ["id", "km", "age", "colour"])


@pytest.mark.parametrize("cls", [xgboost.XGBClassifier, xgboost.Booster])
@pytest.mark.parametrize("made", [dict, lambda row: Car(7, row["km"], row["age"], row["colour"]), pandas.Series])
def test_rows_of_text_and_numbers_predict_as_a_frame_of_all(cars, made, cls):
    model, path = cars
    rows = [*CARS, {"colour": None, "age": None, "km": 3.0}, {"colour": "red", "age": 2.0, "km": math.nan}]
    frame = pandas.DataFrame(rows).astype({"colour": pandas.CategoricalDtype(["blue", "red"])})
    expected = model.predict_proba(frame)[:, 1] if cls is xgboost.Booster else model.predict(frame)
    handler = XGBoostModelHandlerPandas(cls, path)
    assert nearly_equal(inferences(infer(handler, list(map(made, rows)))), list(expected))
    assert nearly_equal(inferences(one for row in rows for one in infer(handler, [made(row)])), list(expected))


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_text_in_files_becomes_the_model_s_categories(cars, tmp_path, ending):
    model, path = cars
    frame = pandas.DataFrame(CARS * 30).assign(id="7").sample(frac=1, random_state=1)
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet}.get(
        ending, partial(frame.to_json, orient="records", lines=True)
    )
    write(tmp_path / f"cars.{ending}", **({} if ending == "jsonl" else {"index": False}))
    options = ["--output", str(tmp_path / "out.csv"), "--method", "predict_proba", "--explode"]
    assert main(["run", str(tmp_path / f"cars.{ending}"), "--model", path, *options]) == 0
    found = pandas.read_csv(tmp_path / "out.csv")[["prediction_0", "prediction_1"]].to_numpy()
    assert numpy.array_equal(
        found.astype("float32"), model.predict_proba(frame[["colour", "age", "km"]].astype({"colour": "category"}))
    )


def test_a_colour_that_the_model_does_not_know_is_the_row_s_own_failure(cars):
    rows = [CARS[0], {**CARS[0], "colour": "mauve"}, CARS[1], {**CARS[0], "age": "old"}]
    handler = XGBoostModelHandlerPandas(xgboost.XGBClassifier, cars[1])
    first, unknown, third, text = predict(handler, rows, on_failure="yield")
    assert nearly_equal([first.inference, third.inference], inferences(predict(handler, [CARS[0], CARS[1]])))
    assert "column 'colour' holds 'mauve', which is none of the model's categories" in str(unknown.error)
    assert "column 'age' holds 'old', which is not a finite number" in str(text.error)


def test_text_needs_a_model_that_knows_its_categories(tmp_path):
    path = tmp_path / "codes.ubj"
    frame = pandas.DataFrame({"colour": pandas.Categorical.from_codes([0, 1] * 20, [0, 1]), "km": numpy.arange(40.0)})
    xgboost.XGBClassifier(n_estimators=2).fit(numpy.asarray(frame, float), [0, 1] * 20).save_model(path)
    model = xgboost.Booster(model_file=path)
    model.feature_names, model.feature_types = ["colour", "km"], ["c", "float"]
    model.save_model(path)
    handler = XGBoostModelHandlerPandas(xgboost.Booster, path)
    with pytest.raises(
        ValueError, match=r"'colour' holds text, and the model has no names of categories; save it with XGBoost 3\.1"
    ):
        list(predict(handler, [{"colour": "red", "km": 1.0}]))
