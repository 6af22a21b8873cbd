"""Beam's own tests of RunInference, run against Headrace: every test, except those listed here with the reason.

The tests are read from the installed apache_beam; their ``base`` is ``headrace.beam`` here.
"""

from __future__ import annotations

import re
import tempfile
import unittest

import pytest

from beams_suites import absent, changed

pytestmark = pytest.mark.filterwarnings("ignore")

LATEST = "of several values in a side input the latest counts; with Beam they are an error"
SIDE_INPUT = "it checks the side input's label, which differs"
PROXIES = re.compile("multi_process_shared|_mps_")
"""In the name of a test of which PROXY is true, if nothing else."""
PROXY = "its handler asserts that the model is a proxy of apache_beam.utils.multi_process_shared"
INTEGRATION = "it needs a cloud service"

NOT_APPLICABLE = {
    "test_run_inference_side_input_in_batch_per_key_models": PROXY,
    "test_run_inference_side_input_in_batch_per_key_models_split_cohort": PROXY,
    "test_run_inference_with_iterable_side_input": LATEST,
    "test_run_inference_watch_file_pattern_keyword_arg_side_input_label": SIDE_INPUT,
    "test_run_inference_watch_file_pattern_side_input_label": SIDE_INPUT,
    "test_run_inference_with_side_inputin_streaming": INTEGRATION,
    "test_run_inference_impl_with_keyed_examples_many_mhs_max_models_hint": PROXY,
    "test_run_inference_impl_with_keyed_examples_many_model_handlers": PROXY,
    "test_run_inference_impl_with_keyed_examples_many_model_handlers_metrics": PROXY,
}

SINCE = {
    "test_unexpected_inference_args_passed": pytest.mark.since_beam(
        "2.71", reason="until then no handler took inference_args unless it said so; Headrace's leave that to the model"
    )
}

LARGE = {  # they wait for seconds, or need PyTorch
    "test_run_inference_timeout_does_garbage_collection",
    "test_run_inference_timeout_on_inference_dlq",
    "test_run_inference_timeout_on_load_dlq",
    "test_run_inference_timeout_not_hit",
    "test_run_inference_impl_with_model_manager",
    "test_run_inference_impl_with_model_manager_args",
    "test_run_inference_impl_with_model_manager_oom",
    "test_model_status_provides_valid_garbage_collection",
    "test_repeated_requests_fail",
    "test_run_inference_with_rate_limiter",
    "test_works_on_retry",
}

OURS = """
from apache_beam.ml.inference import base
import headrace.beam

globals().update(vars(base))
ours = set(headrace.beam.__all__) - {"LanceDBWriteConfig"}  # it is no part of Beam's base, and imports much
globals().update({name: getattr(headrace.beam, name) for name in ours})
"""


_MODULE = changed(
    "base_test",
    "from apache_beam.ml.inference import base\n",
    "import headrace_as_base as base\n",
    headrace_as_base=OURS,
)

for _name, _suite in list(vars(_MODULE).items()):
    if isinstance(_suite, type) and issubclass(_suite, unittest.TestCase):
        for _test in [name for name in vars(_suite) if name in NOT_APPLICABLE or PROXIES.search(name)]:
            delattr(_suite, _test)
        for _test in vars(_suite).keys() & SINCE:
            setattr(_suite, _test, SINCE[_test](vars(_suite)[_test]))
        for _test in vars(_suite).keys() & LARGE:
            setattr(_suite, _test, pytest.mark.large(vars(_suite)[_test]))
        globals()[_name] = _suite
del _suite  # pytest would collect it a second time


@pytest.fixture(autouse=True)
def _tidy(monkeypatch):
    """These tests leave temporary files behind."""
    with tempfile.TemporaryDirectory(prefix="hr") as folder:  # a short name, since a socket's must be short
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.since_beam("2.72", reason="older versions have fewer tests")
def test_excluded_tests_exist():
    assert absent("base_test", {*NOT_APPLICABLE, *SINCE, *LARGE}) == []
