"""Beam's own pipeline tests of its scikit-learn and PyTorch handlers, on Headrace, except those listed here.

They are read from the installed apache_beam; their ``RunInference`` is Headrace's. Beam's suites for ONNX, TensorFlow
and Hugging Face skip themselves without tf2onnx, tensorflow_hub and an older transformers, whatever the transform;
those for XGBoost have a fake that fails with Beam's transform, too.
"""

from __future__ import annotations

import inspect
import unittest

import pytest

from beams_suites import absent, changed

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore")]

PROXY = "its inference_fn asserts that the model is a proxy of apache_beam.utils.multi_process_shared"
CLOUD = "it needs a cloud service"

NOT_APPLICABLE = {
    "sklearn": {"test_pipeline_pandas_large_model": PROXY, "test_pipeline_pickled_large_model": PROXY},
    "pytorch": {
        "test_pipeline_gcs_model": CLOUD,
        "test_pipeline_gcs_model_control_batching": CLOUD,
        "test_pipeline_local_model_extra_inference_args_large": PROXY,
        "test_pipeline_local_model_large": PROXY,
    },
}

_IMPORTED = r"from apache_beam\.ml\.inference(\.base)? import RunInference\b"
_OURS = "from headrace.beam import RunInference"

for _framework, _listed in NOT_APPLICABLE.items():
    for _name, _suite in vars(changed(f"{_framework}_inference_test", _IMPORTED, _OURS)).items():
        if isinstance(_suite, type) and issubclass(_suite, unittest.TestCase):
            for _test in [name for name in vars(_suite) if name.startswith("test_")]:
                if _test in _listed or "RunInference(" not in inspect.getsource(getattr(_suite, _test)):
                    delattr(_suite, _test)
            globals()[_name] = _suite
del _suite  # pytest would collect it a second time


@pytest.mark.parametrize("framework", NOT_APPLICABLE)
def test_excluded_tests_exist(framework):
    assert absent(f"{framework}_inference_test", {*NOT_APPLICABLE[framework]}) == []
