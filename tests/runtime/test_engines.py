"""Engines that take requests one by one: kept full across bundles, and an element's fate is its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest

from headrace import SKIP, BatchingConfig, DeviceLostError, ElementFailure, KeyedModelHandler, RetryConfig, predict
from headrace.core.events import BatchCompleted
from headrace.hosts.provider import HostFailure
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment
from headrace.runtime.engines import EngineRequestHandler
from headrace.runtime.open_worker import open_worker
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.runtime.request_handler import Done, EngineRequest, Raised
from http_endpoint import events_and_outcomes, failures_among
from leap import LIMIT_SECS, leap
from toy_engine import Engine, ToyEngine, ToyEngineHandler
from toys import fixed, run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("requests_end")


class Held(ToyEngine):
    """Answers an example when an event of its own is set."""

    def __init__(self, numbers):
        super().__init__()
        self.events = {number: asyncio.Event() for number in numbers}
        self.loop = None

    async def turn(self, example):
        self.loop = asyncio.get_running_loop()
        if example in self.events:
            await self.events[example].wait()

    def release(self, example):
        self.loop.call_soon_threadsafe(self.events[example].set)


class Together(ToyEngine):
    """Answers only when so many are in flight."""

    def __init__(self, many):
        super().__init__()
        self.many = many
        self.full = asyncio.Event()

    async def turn(self, example):
        if self.in_flight == self.many:
            self.full.set()
        await self.full.wait()


def test_predictions_come_back_with_their_elements():
    handler = KeyedModelHandler(ToyEngineHandler()).with_preprocess_fn(lambda pair: (pair[0], pair[1] + 1))
    handler = handler.with_postprocess_fn(lambda pair: (*pair, "done"))
    found = list(predict(handler, [(str(n), n) for n in range(50)], inference_args={"plus": 1}))
    assert found == [(str(n), 2 * (n + 1) + 1, "done") for n in range(50)]


def test_engine_has_as_many_requests_as_it_takes_and_never_more():
    engine = Together(7)
    assert list(predict(ToyEngineHandler(engine, max_concurrent=7), range(100))) == [2 * n for n in range(100)]
    assert engine.most == 7


def test_engine_is_filled_by_all_bundles_of_the_process():
    engine = Together(4)
    spec = prepare(ToyEngineHandler(engine), InferenceRequest())
    workers = [open_worker(spec) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, workers, [[1], [2], [3], [4]])) == [[2], [4], [6], [8]]
    for worker in workers:
        worker.close()


def test_outcomes_leave_as_they_are_ready():
    engine = Held([0])
    predictions = predict(ToyEngineHandler(engine), range(5), ordered=False)
    assert sorted(next(predictions) for _ in range(4)) == [2, 4, 6, 8]
    engine.release(0)
    assert list(predictions) == [0]


def test_elements_that_fail_cost_the_others_nothing():
    class Answering(ToyEngineHandler):
        async def submit(self, example, model, inference_args=None):
            if example == 3:
                return ElementFailure(KeyError("three"))
            return SKIP if example == 4 else await super().submit(example, model, inference_args)

    events, outcomes = events_and_outcomes(Answering(), [0, 1, "bad", 3, 4])
    failed = {one.element: type(one.error) for one in failures_among(outcomes)}
    assert failed == {"bad": ValueError, 3: KeyError}
    assert [one for one in outcomes if isinstance(one, int)] == [0, 2]
    assert len(outcomes) == 5
    assert {event.examples for event in events.of(BatchCompleted)} == {1}


def test_transient_errors_are_retried():
    class Failing(ToyEngineHandler):
        async def submit(self, example, model, inference_args=None):
            if model.given.count(example) < 2:
                model.given.append(example)
                raise ConnectionError("lost")
            return 2 * example

    assert list(predict(Failing(), [1, 2], retry=RetryConfig(attempts=3))) == [2, 4]


def test_time_limit_is_that_of_each_request_and_the_engine_drops_it():
    engine = Held([2])
    predictions = predict(ToyEngineHandler(engine), range(4), timeout=LIMIT_SECS, on_failure="yield", ordered=False)
    assert sorted(next(predictions) for _ in range(3)) == [0, 2, 6]
    leap()
    (failure,) = predictions
    assert (failure.element, type(failure.error)) == (2, TimeoutError)
    assert f"ToyEngineHandler.submit took longer than {LIMIT_SECS} s" in str(failure.error)
    assert engine.dropped == [2]


def test_bundle_that_is_abandoned_takes_its_requests_back():
    class HeldTogether(Together):
        async def turn(self, example):
            await super().turn(example)
            await asyncio.sleep(1000 if example else 0)

    engine = HeldTogether(5)
    predictions = predict(ToyEngineHandler(engine, max_concurrent=5), range(1000), ordered=False)
    assert next(predictions) == 0
    predictions.close()
    assert wait_until(lambda: engine.in_flight == 0)
    assert len(engine.dropped) >= 4


def test_requests_that_wait_go_with_those_that_begin_alike():
    engine = Held([0])

    class Sorting(ToyEngineHandler):
        def prefix(self, example):
            return "ab"[example % 2] if example else None

    def source():
        yield from range(9)
        assert wait_until(lambda: engine.loop)
        engine.release(0)  # when all others wait

    assert list(predict(Sorting(engine, max_concurrent=1), source())) == [2 * n for n in range(9)]
    assert engine.given == [0, 2, 4, 6, 8, 1, 3, 5, 7]


def test_prefix_that_raises_fails_its_element():
    class Broken(ToyEngineHandler):
        def prefix(self, example):
            return 1 / example

    found = list(predict(Broken(), [0, 1], on_failure="yield"))
    assert [type(one.error) for one in failures_among(found)] == [ZeroDivisionError]
    assert found[1] == 2


@pytest.mark.parametrize("batching", [fixed(4), BatchingConfig()])
def test_batches_are_submitted_one_by_one(batching):
    engine = Together(3)
    handler = KeyedModelHandler(ToyEngineHandler(engine, max_concurrent=3))
    found = list(predict(handler, [(n, n) for n in range(10)], batching=batching))
    assert found == [(n, 2 * n) for n in range(10)]
    assert engine.most == 3


def test_elements_that_are_batches_fail_as_one():
    found = list(predict(ToyEngineHandler().with_no_batching(), [[1, 2], [3, "bad"]], on_failure="yield"))
    assert found[:2] == [2, 4]
    assert [one.element for one in failures_among(found)] == [[3, "bad"]]


def test_engine_may_be_started_where_requests_run():
    class Elsewhere(ToyEngineHandler):
        async def load_model(self):
            assert threading.current_thread().name == "headrace-requests"
            return ToyEngine()

    assert list(predict(Elsewhere(), [1])) == [2]


@pytest.fixture
def answer():
    """Has a new engine answer examples, each with a time limit."""
    handlers = []

    def answer(act, *examples):
        spec = prepare(Engine(act), InferenceRequest(isolate=True, timeout_secs=0.05))
        handlers.append(cloudpickle.loads(cloudpickle.dumps(EngineRequestHandler(spec, ONLY))))
        page = Segment.create(0, Progress.SIZE)
        progress = Progress(page.memory)

        async def all_of_them():
            return [await handlers[-1].answer(EngineRequest(None), [one], progress)() for one in examples]

        return asyncio.run(all_of_them())

    yield answer
    for handler in handlers:
        handler.close()


@pytest.mark.parametrize("ends", ["hangs", "loses its device"])
def test_host_whose_engine_is_lost_is_of_no_more_use(answer, ends):
    async def act(example, engine):
        if ends == "hangs":
            await asyncio.sleep(1000)
        raise DeviceLostError("gone")

    [lost] = answer(act, 13)
    assert (type(lost.head), lost.is_last) == (HostFailure, True)
    assert (lost.head.timed_out, lost.head.device_lost) == (ends == "hangs", ends != "hangs")


def test_request_that_fails_costs_no_host(answer):
    async def act(example, engine):
        if example == 1:
            raise ValueError(example)
        return example

    found = answer(act, 0, 1)
    assert [(type(one.head), one.is_last) for one in found] == [(Done, False), (Raised, False)]
