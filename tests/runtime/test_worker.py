"""Threads share a model and load it once; loads and batches are measured, and models released."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from headrace import MaybeKeyedModelHandler, ModelHandler
from headrace.core.events import ModelLoaded
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.runtime.worker import Worker
from headrace.testing import FakeClock
from toys import Acting, refuse, with_attributes


class Counting(ModelHandler):
    """Records its loads in a given list; any object may be the model."""

    def __init__(self, loads, model=(1, {"a": [2]}), clock=None, **options):
        super().__init__(**options)
        self.loads = loads
        self.model = model
        self.clock = clock

    def load_model(self):
        self.loads.append(threading.get_ident())
        if self.clock:
            self.clock.advance(1.5)
        return self.model

    def run_inference(self, batch, model, inference_args=None):
        if self.clock:
            self.clock.advance(0.25)
        return [(example, inference_args) for example in batch]

    def get_num_bytes(self, batch):
        return 7 * len(batch)


def called(worker, *batch):
    """Predictions, the event, and seconds by the clock of batching."""
    with worker.access.borrow(ONLY) as (model, *_):
        return worker.access.run(ONLY, model, list(batch))


@pytest.fixture
def worker_of(opened):
    return lambda handler, **request: opened(prepare(handler, InferenceRequest(**request)))


def test_threads_share_a_session_and_its_model(opened):
    loads, together = [], threading.Barrier(6)
    spec = prepare(Counting(loads), InferenceRequest())

    def work(_):
        together.wait()
        return opened(spec)

    with ThreadPoolExecutor(6) as threads:
        workers = list(threads.map(work, range(6)))
    assert len({id(worker.session) for worker in workers}) == 1
    assert len(loads) == 1


def test_failed_load_leaves_nothing_open():
    def load():
        loads.append(1)
        raise OSError("no disk")

    loads = []
    spec = prepare(Acting(load=load), InferenceRequest())
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            Worker(spec)
    assert len(loads) == 2


def test_environment_variables_are_set_before_the_load(monkeypatch, worker_of):
    monkeypatch.setenv("HEADRACE_TEST_VARIABLE", "before")
    load = partial(os.environ.get, "HEADRACE_TEST_VARIABLE")
    worker = worker_of(Acting(load=load, env_vars={"HEADRACE_TEST_VARIABLE": "after"}))
    with worker.access.borrow(ONLY) as (model, *_):
        assert model == "after"


def test_loads_and_batches_are_measured_with_the_given_clock(worker_of):
    clock = FakeClock()
    worker = worker_of(Counting([], clock=clock), clock=clock)
    loaded = worker.session.events.popleft()
    assert isinstance(loaded, ModelLoaded)
    assert (loaded.model, loaded.seconds) == ("", 1.5)
    _, batch, _ = called(worker, 1, 2)
    assert (batch.examples, batch.bytes, batch.seconds) == (2, 14, 0.25)
    assert not worker.session.events


def test_model_size_is_the_growth_of_the_process(worker_of):
    worker = worker_of(Acting(load=lambda: bytearray(b"x") * (48 << 20)))
    loaded = worker.session.events.popleft()
    assert loaded.bytes == pytest.approx(48 << 20, rel=0.25)


def test_lazy_results_are_consumed_within_the_timing(worker_of):
    clock = FakeClock()
    worker = worker_of(Acting(lambda batch: map(clock.advance, batch)), clock=clock)
    assert called(worker, 1, 2, 3)[1].seconds == 6


def test_failing_get_num_bytes_does_not_fail_a_batch(caplog, worker_of):
    worker = worker_of(with_attributes(Acting(), get_num_bytes=refuse([1])))
    assert [called(worker, 1)[1].bytes for _ in range(2)] == [0, 0]
    assert caplog.text.count("bytes are not counted") == 1


def test_lingering_worker_keeps_its_model_until_another_transform_opens():
    loads = []
    spec = prepare(Counting(loads), InferenceRequest(model_identifier="same"))
    Worker(spec).close(linger=True)
    again = prepare(Counting(loads), InferenceRequest(model_identifier="same"))
    Worker(again).close()
    assert len(loads) == 2


def test_threads_have_own_handlers_with_the_attributes_set_by_loading(opened):
    class Scratching(Counting):
        def load_model(self):
            self.device = object()
            self.calls = 0
            return super().load_model()

        def run_inference(self, batch, model, inference_args=None):
            self.calls += 1
            return [(self.device, self.calls) for _ in batch]

    spec = prepare(Scratching([]), InferenceRequest())
    one, two = opened(spec), opened(replace(spec, plan=replace(spec.plan, models={ONLY: Scratching([])})))
    devices, calls = zip(*(called(worker, 1)[0][0] for worker in (one, one, two)))
    assert (len(set(devices)), calls) == (1, (1, 2, 1))


def test_handler_that_reports_itself_gets_the_namespace(opened):
    told = []
    handler = with_attributes(Acting(), override_metrics=lambda namespace: told.append(namespace) or True)
    assert opened(prepare(handler, InferenceRequest()), "mine").handler_reports
    assert told == ["mine"]


def test_attributes_set_by_loading_reach_inner_handlers_of_the_same_transform(opened):
    class Inner(Counting):
        def load_model(self):
            self.vocabulary = ["a"]
            return super().load_model()

        def run_inference(self, batch, model, inference_args=None):
            return [getattr(self, "vocabulary", None) for _ in batch]

    spec = prepare(MaybeKeyedModelHandler(Inner([])), InferenceRequest(model_identifier="shared"))
    loader = opened(spec)
    fresh = replace(spec, plan=replace(spec.plan, models={ONLY: MaybeKeyedModelHandler(Inner([]))}))
    same, other = opened(fresh), opened(prepare(Inner([]), InferenceRequest(model_identifier="shared")))
    assert [called(worker, 1)[0] for worker in (loader, same, other)] == [[["a"]], [["a"]], [None]]
