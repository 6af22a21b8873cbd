"""A pipeline's own unit tests, which put something else in the place of its transform."""

import unittest
from unittest import mock

import apache_beam as beam
import apache_beam.ml.inference.base as base
from apache_beam.testing.util import assert_that
from apache_beam.testing.util import equal_to


class Echo(base.ModelHandler):
    """Gives back what it gets."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [base.PredictionResult(x, x, "echo") for x in batch]


def is_echo(result):
    """Whether a result is an echo."""
    return isinstance(result, base.PredictionResult) and result.example == result.inference


class EchoTest(unittest.TestCase):
    """What a continuous build would run."""

    def test_echo(self):
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            results = pipeline | beam.Create([1]) | base.RunInference(Echo())
            assert_that(results, equal_to([base.PredictionResult(1, 1, "echo")]))

    def test_replaced(self):
        with mock.patch.object(base, "RunInference", lambda handler: beam.Map(str)):
            assert isinstance(base.RunInference(Echo()), beam.ParDo)


def build(root, folder):
    """Whether the tests pass, and what is an echo."""
    result = unittest.defaultTestLoader.loadTestsFromTestCase(EchoTest).run(unittest.TestResult())
    assert result.wasSuccessful(), result
    return root | beam.Create([3]) | base.RunInference(Echo()) | beam.Map(is_echo)
