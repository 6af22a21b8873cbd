"""Metrics have Beam's names and the right values."""

from __future__ import annotations

import itertools

import apache_beam.ml.inference.base as incumbent
import pytest

from headrace.beam import KeyedModelHandler, KeyModelMapping, ModelHandler
from headrace.runtime import session
from headrace.testing import FakeClock

CLOCK = FakeClock()


class Timed(ModelHandler):
    """Takes half a second to load and 3 ms per batch, by the clock of the test's process."""

    def load_model(self):
        CLOCK.advance(0.5)
        return frozenset()  # Beam needs one that supports weak references

    def run_inference(self, batch, model, inference_args=None):
        CLOCK.advance(0.003)
        return batch

    def get_num_bytes(self, batch):
        return 8 * len(batch)


class ProcessClock:
    """A clock that pickles; reads the fake clock of its process."""

    def time_ns(self):
        return CLOCK.time_ns()


def run_transform(run, handler, elements, **options):
    run.infer(elements, handler, clock=ProcessClock(), **options)
    return run.metrics()


def test_metrics_have_the_right_values(run, monkeypatch):
    """The process's resident memory is faked: the real one also depends on processes that share its pages."""
    monkeypatch.setattr(session, "resident_bytes", itertools.count(1 << 30, 32 << 20).__next__)
    found = run_transform(run, Timed(min_batch_size=2, max_batch_size=2), range(5))
    assert found["RunInference", "num_inferences"] == 5
    size = found["RunInference", "inference_request_batch_size"]
    assert (size.sum, size.count, size.min, size.max) == (5, 3, 1, 2)
    assert found["RunInference", "inference_request_batch_byte_size"].sum == 40
    latency = found["RunInference", "inference_batch_latency_micro_secs"]
    assert (latency.count, latency.min, latency.max) == (3, 3000, 3000)
    load = found["RunInference", "load_model_latency_milli_secs"]
    assert (load.count, load.sum) == (1, 500)
    assert found["RunInference", "model_byte_size"].sum == 32 << 20
    assert found["BatchElements", "batch_size"].sum == 5
    assert found["BatchElements", "msec_per_batch"].max == 3
    assert ("RunInference", "failed_batches_counter") not in found


@pytest.mark.filterwarnings("ignore:apache_beam's own RunInference")
def test_metrics_have_beams_names(make_run):
    ours = run_transform(make_run(), Timed(), range(3), metrics_namespace="ns")
    run = make_run()
    run.values(out=run.create(range(3)) | incumbent.RunInference(Timed(), metrics_namespace="ns"))
    assert {key for key in ours if key[0] == "ns"} == {key for key in run.metrics() if key[0] == "ns"}


@pytest.mark.parametrize(
    ("keyed", "mapping"),
    [(KeyedModelHandler, KeyModelMapping), (incumbent.KeyedModelHandler, incumbent.KeyModelMapping)],
)
def test_models_by_key_are_counted_separately_and_together(run, keyed, mapping):
    handler = keyed([mapping(["a", "b"], Timed()), mapping(["c"], Timed())])
    found = run_transform(run, handler, [("a", 1), ("b", 2), ("c", 3)])
    assert found["BeamML_KeyedModels", "num_inferences"] == 3
    assert found["BeamML_KeyedModels", "a-_num_inferences"] == 2
    assert found["BeamML_KeyedModels", "c-_num_inferences"] == 1
    assert found["BeamML_KeyedModels", "load_model_latency_milli_secs"].count == 2
    assert found["BeamML_KeyedModels", "c-_load_model_latency_milli_secs"].count == 1


class Silent(Timed):
    def override_metrics(self, metrics_namespace=""):
        return True


class Quiet(Timed):
    def batch_elements_kwargs(self):
        return {"record_metrics": False}


@pytest.mark.parametrize(("handler", "absent"), [(Silent(), "ns"), (Quiet(), "BatchElements")])
def test_metrics_can_be_the_handlers_own_affair_or_those_of_batches_off(run, handler, absent):
    assert absent not in {namespace for namespace, _ in run_transform(run, handler, [1], metrics_namespace="ns")}
