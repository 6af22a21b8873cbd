"""A monitoring transform gets every prediction, whether postprocessing succeeds, fails or skips it."""

from __future__ import annotations

import apache_beam as beam
import apache_beam.ml.inference.base as incumbent
import pytest

import headrace.beam
from headrace.beam import ModelHandler, RunInference
from headrace.testing import DoublingHandler
from pipelines import by_second

MONITORED: list = []


class Doubler(ModelHandler):
    def load_model(self):
        return lambda example: 2 * example

    def run_inference(self, batch, model, inference_args=None):
        return [model(example) for example in batch]


class Monitor(beam.PTransform):
    def expand(self, pcoll):
        return pcoll | beam.Map(note)


def note(value, timestamp=beam.DoFn.TimestampParam):
    MONITORED.append((value, float(timestamp)))


@pytest.fixture(autouse=True)
def _nothing_monitored():
    MONITORED.clear()


def test_monitoring_gets_predictions_before_postprocessing(run):
    handler = Doubler().with_preprocess_fn(abs).with_postprocess_fn(float).with_postprocess_fn(str)
    stamped = by_second(run, "Elements", [(1, 1), (-2, 2)])
    infer = RunInference(handler).with_monitoring_transform(Monitor())
    assert sorted(run.values(good=stamped | infer)) == ["2.0", "4.0"]
    assert sorted(MONITORED) == [(2, 1.0), (4, 2.0)]


BEAMS = pytest.mark.since_beam("2.77", reason="Beam has no monitoring_transform before")


@pytest.mark.parametrize("package", [pytest.param(incumbent, marks=BEAMS), headrace.beam], ids=["beam's", "ours"])
def test_monitoring_gets_the_same_as_with_beam(run, package):
    class OfPackage(package.ModelHandler):
        load_model = Doubler.load_model
        run_inference = Doubler.run_inference

    keyed = package.KeyedModelHandler(OfPackage()).with_postprocess_fn(str)
    infer = package.RunInference(keyed, monitoring_transform=Monitor())
    assert sorted(run.values(good=run.create([("a", 1), ("b", 2)]) | infer)) == ["('a', 2)", "('b', 4)"]
    assert sorted(value for value, _ in MONITORED) == [("a", 2), ("b", 4)]  # Beam loses their timestamps


def test_monitoring_gets_predictions_that_fail_in_postprocessing(run):
    """Monitoring does not change their dead letters."""
    handler = Doubler().with_postprocess_fn(lambda n: n // (n - 4)).with_postprocess_fn(lambda n: 10 // n)
    infer = RunInference(handler, monitoring_transform=Monitor()).with_exception_handling()
    good, dead = run.create([1, 2, 3, None]) | infer
    one, two = dead.failed_postprocessing
    values, inference, first, second = run.values(good=good, failed=dead.failed_inferences, one=one, two=two)
    assert sorted(values) == [-10, 3]
    assert [dead_letter[0] for dead_letter in inference] == [[None]]
    assert [(element, error[0]) for element, error in first] == [(4, ZeroDivisionError)]
    assert second == []
    assert sorted(value for value, _ in MONITORED) == [2, 4, 6]


@pytest.mark.large
@pytest.mark.parametrize(("handled", "isolate"), [(False, True), (True, False)])
def test_monitoring_gets_predictions_that_are_skipped(run, handled, isolate):
    def skip_small(result):  # local, so that a host need not import it
        return headrace.SKIP if result.inference < 3 else result.inference

    handler = DoublingHandler().with_postprocess_fn(skip_small)
    handler = handler.with_postprocess_fn(lambda number: headrace.SKIP if number > 7 else number)
    infer = RunInference(handler, monitoring_transform=Monitor(), isolate=isolate).with_skipped_elements()
    outputs = run.create([1, 2, 3, 4]) | (infer.with_exception_handling() if handled else infer)
    values, skipped = run.values(good=outputs[0], skipped=outputs[-1])
    assert sorted(values) == [4, 6]
    assert sorted(skipped, key=str) == [8, (1, 2, None)]
    assert sorted(value.inference for value, _ in MONITORED) == [2, 4, 6, 8]
