"""What the handlers of XGBoost's models refuse, and boosters of every kind."""

from __future__ import annotations

import sys

import numpy
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


@pytest.mark.parametrize("booster", ["gbtree", "dart", "gblinear"])
def test_boosters_predict_as_from_a_dmatrix(booster):
    model = xgboost.train({"booster": booster}, xgboost.DMatrix(FEATURES, LABELS), 5)
    (result,) = default_xgboost_inference_fn([FEATURES], model)
    assert nearly_equal(result.inference, model.predict(xgboost.DMatrix(FEATURES)))


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
