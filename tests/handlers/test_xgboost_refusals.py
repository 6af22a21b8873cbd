"""What the handlers of XGBoost's models refuse, and what they say then."""

from __future__ import annotations

import sys

import pytest
import xgboost

from headrace import ConfigurationError
from headrace.handlers.xgboost_inference import (
    XGBoostModelHandlerDatatable,
    XGBoostModelHandlerNumpy,
    XGBoostModelHandlerPandas,
)

pytestmark = pytest.mark.large


@pytest.mark.parametrize("wrong", ["Boster", "__version__", None, 1])
def test_model_classes_that_make_no_model_are_refused(wrong):
    with pytest.raises(ConfigurationError, match="model_class must be a class of XGBoost's"):
        XGBoostModelHandlerNumpy(wrong, "model.json")


def test_missing_model_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        XGBoostModelHandlerNumpy(xgboost.Booster, "nothing.json").load_model()


@pytest.mark.parametrize("handler_class", [XGBoostModelHandlerNumpy, XGBoostModelHandlerPandas])
def test_row_with_text_is_refused(handler_class):
    with pytest.raises(ValueError, match="column 'colour' holds 'red', which is not a finite number"):
        handler_class(xgboost.Booster, "model.json").example_from_row({"a": 1, "colour": "red"})


def test_datatable_is_needed_by_its_handler_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatable", None)
    XGBoostModelHandlerNumpy(xgboost.Booster, "model.json")
    with pytest.raises(ImportError, match=r'datatable is not installed; .*pip install .*"datatable>='):
        XGBoostModelHandlerDatatable(xgboost.Booster, "model.json")
