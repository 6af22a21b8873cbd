"""Inference arguments from a side input: an element's batch gets those of the element's window."""

from __future__ import annotations

import os
import tempfile

import apache_beam as beam
import numpy
import pytest
from apache_beam.transforms import window
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam import ModelHandler, ModelMetadata, PredictionResult, RunInference
from headrace.beam.dofn import InferenceDoFn, Switching
from headrace.core.config import BatchingConfig
from headrace.runtime.prepare import InferenceRequest, prepare
from pipelines import by_second

pytestmark = pytest.mark.usefixtures("module_travels")


class Scaling(ModelHandler):
    """Multiplies by the argument; sets an attribute when it loads, and leaves a file for each load."""

    def __init__(self, notes, **options):
        super().__init__(**options)
        self._notes = str(notes)
        self._model_uri = "first"

    def load_model(self):
        self._is_loaded = True
        with tempfile.NamedTemporaryFile(dir=self._notes, delete=False):
            return self._model_uri

    def update_model_path(self, model_path=None):
        self._model_uri = model_path or self._model_uri

    def run_inference(self, batch, model, inference_args=None):
        assert self._is_loaded
        return [PredictionResult(example, example * inference_args["by"], model) for example in batch]

    def validate_inference_args(self, inference_args):
        if inference_args and numpy.all(inference_args["by"] == 0):
            raise ValueError("nothing is to be multiplied by 0")


def asked(pcoll):
    return beam.pvalue.AsDict(pcoll)


def answers(values):
    return sorted((value.example, value.inference) for value in values)


@pytest.mark.parametrize("place", [{"isolate": True}, pytest.param({"placement": "machine"}, marks=pytest.mark.large)])
def test_arguments_apply_to_all_elements(run, tmp_path, place):
    arguments = run.pipeline | "Arguments" >> beam.Create([("by", 3)])
    found = run.infer(range(9), Scaling(tmp_path, max_batch_size=4), inference_args=asked(arguments), **place)
    assert answers(found) == [(n, 3 * n) for n in range(9)]
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.large
def test_arguments_are_those_of_the_elements_window_in_a_host(run, tmp_path):
    elements = by_second(run, "Elements", [(n, n) for n in range(40)])
    arguments = by_second(run, "Arguments", [(("by", n + 1), 10 * n) for n in range(4)])
    infer = RunInference(Scaling(tmp_path, max_batch_size=8), inference_args=asked(arguments), isolate=True)
    found = run.collect(good=elements | infer)
    assert answers(value for value, *_ in found) == [(n, n * (n // 10 + 1)) for n in range(40)]
    assert all(span[0] <= value.example == second < span[1] for value, second, span in found)


def test_arguments_change_together_with_models(run, tmp_path):
    elements = by_second(run, "Elements", [(n, n) for n in range(20)])
    arguments = by_second(run, "Arguments", [(("by", 2), 0), (("by", 3), 10)])
    newer = by_second(run, "Models", [(ModelMetadata("a", "a"), 0), (ModelMetadata("b", "b"), 10)])
    found = run.infer(elements, Scaling(tmp_path), inference_args=asked(arguments), model_metadata_pcoll=newer)
    assert sorted((value.example, value.inference, value.model_id) for value in found) == [
        (n, n * (2 + n // 10), "ab"[n // 10]) for n in range(20)
    ]


def test_arguments_that_the_handler_refuses_fail_before_loading(run, tmp_path):
    arguments = run.pipeline | "Arguments" >> beam.Create([("by", 0)])
    with pytest.raises(Exception, match="nothing is to be multiplied by 0"):
        run.infer([1], Scaling(tmp_path), inference_args=asked(arguments))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("windows", "lateness"), [(window.FixedWindows(10), 60), (window.Sessions(3), 0)])
def test_arguments_with_elements_that_wait_across_bundles(run, tmp_path, windows, lateness):
    arguments = by_second(run, "Arguments", [(("by", 2), 0), (("by", 3), 10)])
    stamped = run.create([1, 2, 11, 3, 12]) | beam.Map(lambda n: window.TimestampedValue(n, n))
    elements = stamped | "Windows" >> beam.WindowInto(windows, allowed_lateness=lateness)
    elements.is_bounded = False
    batching = BatchingConfig(min_batch_size=2, max_batch_size=2, max_batch_duration_secs=1)
    found = run.infer(elements, Scaling(tmp_path), inference_args=asked(arguments), batching=batching)
    assert answers(found) == [(1, 2), (2, 4), (3, 6), (11, 33), (12, 36)]


def test_arguments_without_equality_load_no_further_model(tmp_path):
    """Arrays have no equality, and each bundle gets another copy."""
    dofn = InferenceDoFn(
        prepare(Scaling(tmp_path, max_batch_size=4), InferenceRequest()), switching=Switching(has_arguments=True)
    )
    outputs = []
    dofn.setup()
    for by in (2.0, 2.0, 3.0):
        dofn.start_bundle()
        windowed = WindowedValue(1, 0, (window.GlobalWindow(),))
        outputs += [*dofn.process(1, windowed, {"by": numpy.array([by, by])}), *dofn.finish_bundle()]
    dofn.teardown()
    assert [output.value.inference.tolist() for output in outputs] == [[2, 2], [2, 2], [3, 3]]
    assert len(os.listdir(tmp_path)) == 1
