"""A process that has lost its device makes no dead letters of the work that it cannot do, and stops trying."""

from __future__ import annotations

from contextlib import closing

import pytest

from headrace import (
    BatchingConfig,
    DeviceLostError,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    RemoteModelHandler,
    RetryConfig,
    predict,
)
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.worker import Worker
from headrace.testing import DeviceLosingHandler, DoublingHandler, FakeDevice, FaultyFunction, FaultyLoadHandler

SAID = "CUDA error: device-side assert triggered"
CURE = r"lost its device \(RuntimeError: CUDA error: device-side assert triggered\).* isolate=True"
BATCHING = BatchingConfig(8, 8)


class Counting(DeviceLosingHandler):
    """Counts its calls in this process."""

    def __init__(self, *poison, **options):
        super().__init__(*poison, **options)
        self.loads = self.calls = 0

    def load_model(self):
        self.loads += 1
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        self.calls += 1
        return super().run_inference(batch, model, inference_args)


@pytest.fixture
def worker_of(opened):
    def make(handler, caught=Exception, **asked):
        return opened(catching(prepare(handler, InferenceRequest(batching=BATCHING, **asked)), caught))

    return make


def add_all(bundle, elements, outcomes):
    for element in elements:
        outcomes += bundle.add(element, element)
    outcomes += bundle.finish()


@pytest.mark.parametrize("caught", [Exception, BaseException, ()])
@pytest.mark.parametrize("retry", [RetryConfig(), RetryConfig(retryable=lambda error: True)])
def test_lost_device_in_inference_is_raised(caught, retry, worker_of):
    """The batch is neither repeated nor halved; the predictions of earlier batches are out."""
    worker, outcomes = worker_of(Counting(13), caught, retry=retry), []
    with pytest.raises(DeviceLostError, match=CURE) as raised:
        add_all(worker.bundle(FanOut()), range(64), outcomes)
    assert worker.plan.handler.calls == 2
    assert [outcome.tags for outcome in outcomes] == [list(range(8))]
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert str(raised.value.__cause__) == SAID


class Client(RemoteModelHandler):
    """For an endpoint that may lose its device."""

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        if 3 in batch:
            raise RuntimeError(SAID)
        return batch


def test_lost_device_of_a_local_model_is_raised_and_that_of_an_endpoint_a_dead_letter():
    mappings = [KeyModelMapping(["there"], Client(num_retries=0)), KeyModelMapping(["here"], DeviceLosingHandler(13))]
    handler = KeyedModelHandler(mappings)
    failure, _ = predict(handler, [("there", 3), ("here", 4)], on_failure="yield")
    assert (failure.element, str(failure.error)) == (("there", 3), SAID)
    with pytest.raises(DeviceLostError, match=CURE):
        list(predict(handler, [("there", 4), ("here", 13)], on_failure="yield"))


def test_lost_device_stops_later_bundles_and_workers_from_calling_the_model():
    spec = catching(prepare(Counting(3), InferenceRequest(batching=BATCHING)), Exception)
    with closing(open_worker(spec)) as worker:
        handler, early = worker.plan.handler, worker.bundle(FanOut())
        bundle = worker.bundle(FanOut())
        with pytest.raises(DeviceLostError, match=CURE):
            [bundle.add(n, n) for n in range(8)]
        with pytest.raises(DeviceLostError, match=CURE):
            [early.add(n, n) for n in range(100, 108)]
        with pytest.raises(DeviceLostError, match=CURE):
            worker.bundle(FanOut())
        assert handler.calls == 1
    with pytest.raises(DeviceLostError, match=CURE):
        Worker(spec)
    assert handler.loads == 1
    assert len(list(predict(DoublingHandler(), range(8)))) == 8  # other models may well have a device


@pytest.mark.parametrize("caught", [Exception, (), BaseException])
@pytest.mark.parametrize("stage", ["before", "after"])
def test_lost_device_in_preprocessing_or_postprocessing_is_raised(stage, caught, worker_of):
    lose = FaultyFunction(FakeDevice().lose, 13)
    handler = DoublingHandler()
    if stage == "before":
        handler = handler.with_preprocess_fn(lose)
    else:
        handler = handler.with_postprocess_fn(lambda one: lose(one.example))
    worker = worker_of(handler, caught)
    bundle = worker.bundle(FanOut())
    with pytest.raises(DeviceLostError, match=CURE):
        [bundle.add(n, n) for n in range(16)]
    with pytest.raises(DeviceLostError, match=CURE):
        worker.bundle(FanOut())


@pytest.mark.parametrize("caught", [Exception, ()])
def test_lost_device_in_loading_is_raised(caught):
    device, loads = FakeDevice(), []

    def lose():
        loads.append(1)
        device.lose()

    spec = prepare(FaultyLoadHandler(lose), InferenceRequest(retry=RetryConfig(retryable=lambda error: True)))
    for _ in range(2):
        with pytest.raises(DeviceLostError, match=CURE), closing(Worker(catching(spec, caught))) as worker:
            worker.bundle(FanOut())
    assert loads == [1]


@pytest.mark.parametrize("isolate", [False, True])
def test_other_errors_remain_dead_letters(isolate):
    """Other device errors are transient, and those in a host end with it."""
    device = FakeDevice(message="CUDA error: invalid configuration argument")
    handler = DoublingHandler().with_preprocess_fn(FaultyFunction(device.lose, 3))
    outcomes = list(predict(handler, range(8), isolate=isolate, on_failure="yield"))
    assert [isinstance(one, Failure) for one in outcomes] == [n == 3 for n in range(8)]
