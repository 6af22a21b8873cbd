"""What the handlers of XGBoost's models refuse, and what they say then."""

from __future__ import annotations

import pytest
import xgboost

from headrace import ConfigurationError
from headrace.handlers.xgboost_inference import XGBoostModelHandlerNumpy

pytestmark = pytest.mark.large


@pytest.mark.parametrize("wrong", ["Boster", "__version__", None, 1])
def test_model_classes_that_make_no_model_are_refused(wrong):
    with pytest.raises(ConfigurationError, match="model_class must be a class of XGBoost's"):
        XGBoostModelHandlerNumpy(wrong, "model.json")


def test_missing_model_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        XGBoostModelHandlerNumpy(xgboost.Booster, "nothing.json").load_model()


@pytest.mark.parametrize("package", ["numpy", "pandas", "scipy", "xgboost"])
def test_missing_packages_are_named_with_the_extra(said_without, package):
    assert said_without("headrace.handlers.xgboost_inference", package) == (
        f"MissingExtraError: {package} is not installed; install it with: pip install 'headrace[xgboost]'"
    )
