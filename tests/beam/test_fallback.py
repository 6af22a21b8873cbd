"""A fallback in a pipeline: outputs keep their elements' windows, dead letters name both errors, metrics say who."""

from __future__ import annotations

import apache_beam as beam
import pytest

from headrace.beam import ModelHandler, ModelMetadata, PredictionResult, RunInference
from pipelines import by_second

pytestmark = pytest.mark.usefixtures("module_travels")
LARGE = pytest.mark.large


class Squares(ModelHandler):
    """Of numbers that are not multiples of ``no_multiples_of``."""

    def __init__(self, no_multiples_of, **options):
        super().__init__(**options)
        self.no_multiples_of = no_multiples_of
        self.path = "old"

    def load_model(self):
        return self.path

    def update_model_path(self, model_path=None):
        self.path = model_path or self.path

    def run_inference(self, batch, model, inference_args=None):
        if any(example % self.no_multiples_of == 0 for example in batch):
            raise ValueError("a multiple")
        return [PredictionResult(one, one**2 * (inference_args or {}).get("by", 1), model) for one in batch]


@pytest.mark.parametrize(
    ("place", "waits"),
    [({}, False), ({}, True), ({"isolate": True}, True), pytest.param({"placement": "machine"}, False, marks=LARGE)],
)
def test_answers_of_the_fallback_keep_their_windows(run, place, waits):
    elements = by_second(run, "Elements", [(n, n) for n in range(1, 31)])
    elements.is_bounded = not waits
    handler = Squares(3, max_batch_size=4, max_batch_duration_secs=1000)
    infer = RunInference(handler, fallback=Squares(5), **place)
    good, bad = elements | infer.with_exception_handling()
    letters = bad.failed_inferences | beam.MapTuple(lambda element, error: (element, error[1]))
    found, failed = run.collect(good=good, letters=letters)
    expected = [(n, n**2, n, n // 10 * 10) for n in range(1, 31) if n % 15]
    assert sorted((one.example, one.inference, time, span[0]) for one, time, span in found) == expected
    assert sorted((one[0], time, span[0]) for one, time, span in failed) == [([15], 15, 10), ([30], 30, 30)]
    assert all("ValueError: a multiple; the fallback failed, too" in one[1] for one, _, _ in failed)
    metrics = run.metrics()
    assert metrics["RunInference", "num_inferences"] == 28
    assert metrics["RunInference", "fallback-_num_inferences"] == 8


def test_fallback_stays_when_the_model_is_refreshed(run):
    updates = run.pipeline | "Updates" >> beam.Create([ModelMetadata("new", "new")])
    found = run.infer(range(1, 5), Squares(3), fallback=Squares(5), model_metadata_pcoll=updates)
    assert sorted(found) == [(1, 1, "new"), (2, 4, "new"), (3, 9, "old"), (4, 16, "new")]
