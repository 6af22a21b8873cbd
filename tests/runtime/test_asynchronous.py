"""Asynchronous handlers, answers for single elements, limits on what waits; and nothing left behind."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading

import pytest

from headrace import (
    SKIP,
    ConfigurationError,
    ElementFailure,
    ElementRetry,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    RateLimitExceeded,
    RemoteModelHandler,
    predict,
)
from headrace.core.events import BatchRetried, RequestsThrottled
from headrace.runtime.remote_executor import InFlightDedup
from http_endpoint import (
    Answer,
    AsyncRemote,
    Remote,
    StatusError,
    events_and_outcomes,
    failures_among,
    for_first,
    once,
    serving,
)
from toy_engine import ToyEngineHandler
from toys import Acting, each, fixed
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("requests_end")

BOTH = pytest.mark.parametrize("kind", [Remote, AsyncRemote])


class Answering(RemoteModelHandler):
    """Answers with what a function of the example and the try says."""

    def __init__(self, act, **options):
        super().__init__(**options)
        self.act = act
        self.seen = []

    def create_client(self):
        return None

    async def request(self, batch, model, inference_args=None):
        self.seen.append(list(batch))
        return [self.act(example, sum(example in earlier for earlier in self.seen)) for example in batch]

    def batch_elements_kwargs(self):
        return {"min_batch_size": 4, "max_batch_size": 4}


def test_answers_for_single_elements_cost_the_others_nothing():
    def act(example, tries):
        if example == 1:
            return ElementFailure(ValueError("bad"))
        if example == 2 and tries < 3:
            return ElementRetry(ConnectionError("busy"))
        return SKIP if example == 3 else example

    handler = Answering(act)
    events, outcomes = events_and_outcomes(handler, range(4))
    (failure,) = failures_among(outcomes)
    assert (failure.element, str(failure.error)) == (1, "bad")
    assert [one for one in outcomes if isinstance(one, int)] == [0, 2]
    assert len(outcomes) == 4
    assert len(events.of(BatchRetried)) == 2


def test_answers_for_single_elements_may_use_up_their_retries():
    handler = Answering(lambda example, tries: ElementRetry(ConnectionError("busy")), num_retries=1)
    _, outcomes = events_and_outcomes(handler, [1])
    assert [(one.attempts, str(one.error)) for one in outcomes] == [(2, "busy")]


def test_answers_for_single_elements_fail_a_batch_that_is_an_element():
    handler = Answering(lambda example, tries: ElementFailure(ValueError("bad")) if example else 0).with_no_batching()
    found = list(predict(handler, [[0, 1], [0, 0]], on_failure="yield"))
    assert [one for one in found if one == 0] == [0, 0]
    assert [one.element for one in failures_among(found)] == [[0, 1]]


class Asynchronous(ModelHandler):
    """Not remote, but asynchronous."""

    async def load_model(self):
        return asyncio.get_running_loop()

    async def run_inference(self, batch, model, inference_args=None):
        assert model is asyncio.get_running_loop()
        await asyncio.sleep(0)
        if "bad" in batch:
            raise KeyError("bad")
        return (2 * one for one in batch)


def test_any_handler_may_be_asynchronous():
    found = list(predict(Asynchronous(), [1, 2, "bad"], on_failure="yield", batching=fixed(1)))
    assert found[:2] == [2, 4]
    assert isinstance(found[2].error, KeyError)


def test_elements_that_are_batches_need_no_length():
    limiter = Limiter()
    handler = Remote("", rate_limiter=limiter)
    handler.request = lambda batch, model, inference_args=None: [next(batch), next(batch)]
    assert list(predict(handler.with_no_batching(), [iter("ab")])) == ["a", "b"]
    assert limiter.hits == [1]


def test_models_by_key_may_be_local_and_remote_and_engines():
    with serving() as server:
        models = {"near": Acting(each(str)), "far": Remote(server.url), "engine": ToyEngineHandler()}
        handler = KeyedModelHandler([KeyModelMapping([key], one) for key, one in models.items()], 1)
        elements = [(key, n) for n in range(20) for key in models]
        found = list(predict(handler, elements, batching=fixed(2)))
    assert found == [(key, str(n) if key == "near" else 2 * n) for key, n in elements]


class Limiter:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.hits = []

    def allow(self, hits_added):
        self.hits.append(hits_added)
        return self.answers.pop(0) if self.answers else True


@BOTH
def test_rate_limiter_is_asked_before_each_request(kind):
    limiter = Limiter(False)
    with serving() as server:
        assert list(predict(kind(server.url, size=2, rate_limiter=limiter), range(4))) == [0, 2, 4, 6]
        assert len(server.requests) == 2
    assert limiter.hits == [2, 2, 2]


def test_rate_limiter_that_refuses_all_tries_fails_the_element():
    handler = Answering(lambda example, tries: example, num_retries=1, rate_limiter=Limiter(False, False))
    with pytest.raises(RateLimitExceeded):
        list(predict(handler, [1]))


def test_uncaught_error_cancels_the_other_requests():
    refusal = once(Answer(), Answer(400))
    with serving(refusal) as server, pytest.raises(StatusError, match="400"):
        list(predict(Remote(server.url), range(10)))


def test_isolation_is_not_for_requests():
    with pytest.warns(UserWarning, match="isolate has no effect"), serving() as server:
        assert list(predict(Remote(server.url), [1], isolate=True)) == [2]
    for other in (Asynchronous(), ToyEngineHandler()):
        mixed = KeyedModelHandler([KeyModelMapping(["a"], Acting()), KeyModelMapping(["b"], other)])
        with pytest.raises(ConfigurationError, match="'b' send requests from this one"):
            predict(mixed, [], timeout=3)


def test_bundle_holds_few_elements_that_wait():
    read = []
    go = threading.Event()

    class Held(Asynchronous):
        async def run_inference(self, batch, model, inference_args=None):
            await asyncio.get_running_loop().run_in_executor(None, go.wait)
            return batch

    def source():
        for n in range(1000):
            read.append(n)
            yield n

    predictions = predict(Held(), source(), batching=fixed(1))
    asking = threading.Thread(target=lambda: next(predictions))
    asking.start()
    assert wait_until(lambda: len(read) >= 10)
    assert len(read) < 20
    go.set()
    asking.join()
    predictions.close()


@pytest.mark.large
def test_time_that_a_bundle_waits_for_a_quota_is_reported():
    with serving(for_first(5, Answer(429, headers={"Retry-After": "1.1"}))) as server:
        events, outcomes = events_and_outcomes(Remote(server.url, namespace="mine"), range(12))
    assert sorted(outcomes) == [2 * n for n in range(12)]
    throttled = events.of(RequestsThrottled)
    assert {event.namespace for event in throttled} == {"mine"}
    assert 1 <= sum(event.seconds for event in throttled) <= 30


SEEN = contextvars.ContextVar("seen", default="nothing")


class OneTaskAfterTheOther(RemoteModelHandler):
    """Predicts what a context variable holds, and sets it; keeps the tasks that its requests are in."""

    def create_client(self):
        return set()

    async def request(self, batch, model, inference_args=None):
        before = SEEN.get()
        SEEN.set(str(batch))
        model.add(asyncio.current_task())
        await asyncio.sleep(0.001)
        return [(before, model)] * len(batch)


def test_task_goes_on_with_the_next_request_in_a_context_of_its_own():
    handler = OneTaskAfterTheOther()
    handler.max_concurrent = 2
    found = list(predict(handler, range(100), batching=fixed(1)))
    assert {before for before, _ in found} == {"nothing"}
    assert len(found[-1][1]) < 50


def test_elements_whose_equal_has_failed_are_asked_for_side_by_side(tmp_path, monkeypatch):
    """Each but the first one waits for another one."""
    pair, sent, looked_at, defer = threading.Barrier(2), [], itertools.count(1), InFlightDedup.defer
    all_wait = threading.Event()

    def deferred(self, name, batch):
        first = defer(self, name, batch)
        if next(looked_at) == 5:
            all_wait.set()
        return first

    monkeypatch.setattr(InFlightDedup, "defer", deferred)

    class Failing(Remote):
        max_concurrent = 2  # whatever latencies say

        def request(self, batch, model, inference_args=None):
            sent.append(batch)
            if len(sent) > 1:
                pair.wait(60)
            else:
                assert all_wait.wait(60)
            raise StatusError(422, {})

        def cache_key(self):
            return "failing"

    found = list(predict(Failing(""), [1] * 5, on_failure="yield", cache=str(tmp_path / "cache")))
    assert [type(one.error) for one in found] == [StatusError] * 5
    assert sent == [[1]] * 5
