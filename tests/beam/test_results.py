"""What RunInference returns where that is more than its predictions."""

from __future__ import annotations

import subprocess
import sys

import apache_beam as beam
import pytest
from apache_beam.ml.inference import base
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import headrace.beam
from headrace import PredictionCountError
from headrace.beam import RunInference
from headrace.testing import DoublingHandler
from toys import Acting


def results_of(transform):
    return beam.Pipeline() | beam.Create([1]) | transform


def test_dead_letters_are_of_headraces_class_and_of_beams():
    _, dead = results_of(RunInference(DoublingHandler().with_preprocess_fn(int)).with_exception_handling())
    assert isinstance(dead, headrace.beam.RunInferenceDLQ)
    assert isinstance(dead, base.RunInferenceDLQ)
    assert len(dead.failed_preprocessing) == 1
    inference, before, after = dead
    assert (inference, list(before), list(after)) == (dead.failed_inferences, list(dead.failed_preprocessing), [])


@pytest.mark.large
def test_dead_letters_do_not_load_beams_module():
    code = """
import sys
import apache_beam as beam
from headrace.beam import RunInference, RunInferenceDLQ
from headrace.testing import DoublingHandler

_, dead = beam.Pipeline() | beam.Create([1]) | RunInference(DoublingHandler()).with_exception_handling()
assert type(dead) is RunInferenceDLQ
assert "apache_beam.ml.inference.base" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_error_of_a_pipeline_has_the_type_of_the_error():
    def too_few(batch):
        return []

    with pytest.raises(
        PredictionCountError, match=r"given 2 examples and returned 0 .*\[while running '.*RunInference"
    ):
        results_of_running(Acting(too_few, min_batch_size=2, max_batch_size=2))


def results_of_running(handler):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([1, 2]) | RunInference(handler)
