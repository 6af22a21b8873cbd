"""Beam's own pipeline tests of its scikit-learn, PyTorch and XGBoost handlers, on Headrace, except those listed here.

They are read from the installed apache_beam; their ``RunInference`` is Headrace's. Beam's suites for ONNX, TensorFlow
and Hugging Face skip themselves without tf2onnx, tensorflow_hub and an older transformers, whatever the transform.
"""

from __future__ import annotations

import inspect
import sys
import types
import unittest

import pytest

from beams_suites import absent, changed

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore")]

PROXY = "its inference_fn asserts that the model is a proxy of apache_beam.utils.multi_process_shared"
CLOUD = "it needs a cloud service"
ALSO_WITH_BEAM = "its fake counts calls in an attribute that the saved model lacks: it fails with Beam's transform, too"

NOT_APPLICABLE = {
    "sklearn": {
        "test_pipeline_pandas_large_model": PROXY,
        "test_pipeline_pickled_large_model": PROXY,
    },
    "pytorch": {
        "test_pipeline_gcs_model": CLOUD,
        "test_pipeline_gcs_model_control_batching": CLOUD,
        "test_pipeline_local_model_extra_inference_args_large": PROXY,
        "test_pipeline_local_model_large": PROXY,
    },
    "xgboost": {
        f"test_pipeline_{kind}{what}": ALSO_WITH_BEAM
        for kind in ("datatable", "numpy", "pandas", "scipy")
        for what in ("", "_sets_env_vars_correctly", "_with_keys")
    },
}

if sys.version_info >= (3, 13):  # datatable has no wheels, without which Beam's suite for XGBoost skips itself
    del NOT_APPLICABLE["xgboost"]

_IMPORTED = r"from apache_beam\.ml\.inference(\.base)? import RunInference\b"


def beams_tests(framework: str) -> types.ModuleType:
    """Beam's test module with Headrace's transform."""
    return changed(f"{framework}_inference_test", _IMPORTED, "from headrace.beam import RunInference")


def pipelines(module: types.ModuleType) -> dict[str, type[unittest.TestCase]]:
    """The module's test cases, reduced to tests that run the transform."""
    suites = {name: suite for name, suite in vars(module).items() if isinstance(suite, type)}
    found = {}
    for name, suite in suites.items():
        if issubclass(suite, unittest.TestCase):
            for test in [test for test in vars(suite) if test.startswith("test_")]:
                if "RunInference(" not in inspect.getsource(getattr(suite, test)):
                    delattr(suite, test)
            found[name] = suite
    return found


for _framework, _listed in NOT_APPLICABLE.items():
    for _name, _suite in pipelines(beams_tests(_framework)).items():
        for _test in _listed:
            if _test in vars(_suite):
                delattr(_suite, _test)
        globals()[_name] = _suite
del _suite  # pytest would collect it a second time


@pytest.mark.parametrize("framework", NOT_APPLICABLE)
def test_excluded_tests_exist(framework):
    assert absent(f"{framework}_inference_test", {*NOT_APPLICABLE[framework]}) == []
