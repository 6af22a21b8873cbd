"""An executor is all that differs between ways to run a bundle's batches; one that is asynchronous is no exception."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace import BatchingConfig, ModelHandler
from headrace.core.result import Caught, Failure, Predictions, Stage
from headrace.runtime.bundle import Bundle
from headrace.runtime.observers import FanOut
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.worker import Worker

IN_FLIGHT = 1000


class Unused(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        raise AssertionError


class AsynchronousExecutor:
    """Answers only once as many batches as allowed are in flight, and then the last one first."""

    preprocess_here = True

    def __init__(self, plan):
        self._plan = plan
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._in_flight = []
        self.most = 0

    def submit(self, name, batch):
        outcomes = self.collect() if len(self._in_flight) >= IN_FLIGHT else []
        self._in_flight.append(asyncio.run_coroutine_threadsafe(self._answer(batch), self._loop))
        self.most = max(self.most, len(self._in_flight))
        return outcomes

    def collect(self):
        done, self._in_flight = self._in_flight[::-1], []
        return [outcome for future in done for outcome in future.result(timeout=60)]

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, batch):
        await asyncio.sleep(0)
        outcomes = []
        for element, tag in zip(batch.elements, batch.tags, strict=True):
            if element % 100 == 7:
                caught = Caught(ValueError(element), [])
                outcomes.append(self._plan.failure(tag, Stage.INFERENCE, 0, element, caught))
            else:
                outcomes.append(Predictions([tag], [element * 10]))
        return outcomes


@pytest.mark.parametrize("waits", [None, 0.01])
def test_a_bundle_over_a_thousand_batches_in_flight_loses_nothing(waits):
    def refuse(element):
        if element % 100 == 3:
            raise ValueError(element)
        return element

    batching = BatchingConfig(1, 2, max_batch_duration_secs=waits)
    spec = prepare(Unused().with_preprocess_fn(refuse), InferenceRequest(batching=batching))
    worker = Worker(catching(spec, Exception))
    executor = AsynchronousExecutor(worker.plan)
    try:
        slot = worker.session.cross_bundle.join() if waits else None
        bundle = Bundle(worker.spec, worker.session, executor, FanOut(), slot)
        outcomes = [outcome for n in range(5000) for outcome in bundle.add(n, n)]
        outcomes += bundle.finish()
    finally:
        executor.close()
        worker.close()
    good = {tag: value for one in outcomes if isinstance(one, Predictions) for tag, value in zip(one.tags, one.values)}
    bad = sorted((one.tag, one.stage) for one in outcomes if isinstance(one, Failure))
    assert good == {n: n * 10 for n in range(5000) if n % 100 not in (3, 7)}
    assert bad == sorted(
        (n, Stage.PREPROCESSING if n % 100 == 3 else Stage.INFERENCE) for n in range(5000) if n % 100 in (3, 7)
    )
    assert executor.most == IN_FLIGHT
