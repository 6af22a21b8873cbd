"""Beam's own pipeline tests of its scikit-learn, PyTorch and XGBoost handlers, on Headrace, except those listed here.

They are read from the installed apache_beam; their ``RunInference`` is Headrace's. Beam's suites for ONNX, TensorFlow
and Hugging Face skip themselves without tf2onnx, tensorflow_hub and an older transformers, whatever the transform.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import re
import shutil
import sys
import tempfile
import types
import unittest
from pathlib import Path

import apache_beam.ml.inference.base as incumbent
import pytest

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

_IMPORTED = re.compile(r"from apache_beam\.ml\.inference(\.base)? import RunInference\b")


def source_of(framework: str) -> str:
    return Path(incumbent.__file__).with_name(f"{framework}_inference_test.py").read_text()


def beams_tests(framework: str) -> types.ModuleType:
    """Beam's test module with Headrace's transform; a file, since model hosts import it, too."""
    folder = Path(tempfile.mkdtemp(prefix="beams_frameworks"))
    atexit.register(shutil.rmtree, folder)
    source, count = _IMPORTED.subn("from headrace.beam import RunInference", source_of(framework))
    assert count == 1
    source = re.sub(r" *@pytest\.mark\.\w+\n", "", source)  # markers of Beam's own continuous integration
    (folder / f"beams_{framework}_test.py").write_text(source)
    sys.path.append(str(folder))
    return importlib.import_module(f"beams_{framework}_test")


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
    source = source_of(framework)
    assert [name for name in NOT_APPLICABLE[framework] if f"def {name}(" not in source] == []
