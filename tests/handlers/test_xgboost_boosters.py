"""Boosters predict from arrays in place, as they do from a DMatrix; what the handlers refuse."""

from __future__ import annotations

import sys

import numpy
import pandas
import pytest
import xgboost

from headrace import ConfigurationError
from headrace.handlers.xgboost_inference import (
    XGBoostModelHandlerDatatable,
    XGBoostModelHandlerNumpy,
    XGBoostModelHandlerPandas,
    default_xgboost_inference_fn,
)
from headrace.testing import nearly_equal

pytestmark = pytest.mark.large

FEATURES = numpy.random.default_rng(7).normal(size=(200, 3))
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])


@pytest.mark.parametrize("booster", ["gbtree", "dart", "gblinear"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
def test_boosters_predict_as_from_a_dmatrix(booster, dtype):
    model = xgboost.train({"booster": booster}, xgboost.DMatrix(FEATURES, LABELS), 5)
    matrix = numpy.where(FEATURES > 1, 0 if dtype == "int64" else numpy.nan, 2 * FEATURES).astype(dtype)
    (result,) = default_xgboost_inference_fn([matrix], model)
    assert nearly_equal(result.inference, model.predict(xgboost.DMatrix(matrix)))


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        (numpy.array([[1, 2, numpy.inf]]), "contains `inf` or a value too large"),
        (numpy.array([[1, 2, 1e300]]), "contains `inf` or a value too large"),
        (numpy.ones((1, 4)), "4"),
        (numpy.ones((1, 2)), "2 columns, and the model 3 features"),
    ],
)
def test_boosters_refuse_what_a_dmatrix_would(matrix, complaint):
    model = xgboost.train({}, xgboost.DMatrix(FEATURES, LABELS), 5)
    with pytest.raises(ValueError, match=complaint):
        default_xgboost_inference_fn([matrix], model)


def test_names_of_features_are_asked_for_all_the_same():
    model = xgboost.train({}, xgboost.DMatrix(FRAME, LABELS), 5)
    with pytest.raises(ValueError, match="did not contain feature names"):
        default_xgboost_inference_fn([FEATURES], model)


@pytest.mark.parametrize("wrong", ["Boster", "__version__", None, 1])
def test_model_classes_that_make_no_model_are_refused(wrong):
    with pytest.raises(ConfigurationError, match="model_class must be a class of XGBoost's"):
        XGBoostModelHandlerNumpy(wrong, "model.json")


@pytest.mark.parametrize("handler_class", [XGBoostModelHandlerNumpy, XGBoostModelHandlerPandas])
def test_row_with_text_is_refused(handler_class):
    with pytest.raises(ValueError, match="column 'colour' holds 'red', which is not a finite number"):
        handler_class(xgboost.Booster, "model.json").example_from_row({"a": 1, "colour": "red"})


def test_datatable_is_needed_by_its_handler_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatable", None)
    XGBoostModelHandlerNumpy(xgboost.Booster, "model.json")
    with pytest.raises(ImportError, match=r'datatable is not installed; .*pip install .*"datatable>='):
        XGBoostModelHandlerDatatable(xgboost.Booster, "model.json")
