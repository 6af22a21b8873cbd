"""Endpoints with a fallback: what they cannot answer goes there, all of it while they are down, and no longer."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import (
    ElementFailure,
    ElementRetry,
    EndpointError,
    FallbackError,
    KeyedModelHandler,
    KeyModelMapping,
    RemoteModelHandler,
    RetryConfig,
    predict,
)
from headrace.core.result import Failure
from headrace.runtime.open_worker import open_worker
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from http_endpoint import Answer, AsyncRemote, Remote, for_example, for_first, serving
from leap import LIMIT_SECS, leap
from toys import Acting, Events, each, fixed, refuse, run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels")


def negative(batch):
    return [-one for one in batch]


def worker_for(handler, fallback, close_later, **options):
    spec = prepare(handler, InferenceRequest(fallback=fallback, **options))
    return close_later(open_worker(catching(spec, Exception)))


def test_one_fallback_serves_local_and_remote_models_by_key(nobody):
    with serving() as server:
        models = {
            "gone": Remote(nobody),
            "there": Remote(server.url),
            "here": Acting(each(refuse(3)), max_batch_size=2),
        }
        handler = KeyedModelHandler([KeyModelMapping([key], model) for key, model in models.items()])
        elements = [(key, n) for n in range(10) for key in models]
        found = list(predict(handler, elements, fallback=Acting(negative), placement="process"))
    by_key = {key: [value for name, value in found if name == key] for key in models}
    assert by_key["gone"] == [-n for n in range(10)]
    assert by_key["there"] == [2 * n for n in range(10)]
    assert by_key["here"] == [-n if n == 3 else n for n in range(10)]


@pytest.mark.parametrize(("kind", "status"), [(Remote, 500), (AsyncRemote, 503)])
def test_endpoint_that_is_down_is_only_probed_and_used_again_when_it_is_back(kind, status, close_later):
    is_down = threading.Event()
    is_down.set()
    with serving(lambda examples, before: Answer(status if is_down.is_set() else 200)) as server:
        worker = worker_for(kind(server.url), Acting(negative, max_batch_size=7), close_later)
        assert sorted(run(worker, range(1, 1000))) == [*range(-999, 0)]
        assert len(server.requests) < 100
        is_down.clear()
        assert wait_until(lambda: run(worker, [1]) == [2])
        assert sorted(run(worker, range(1, 100))) == [2 * n for n in range(1, 100)]


def test_endpoint_that_refuses_for_a_moment_is_waited_for():
    with serving(for_first(6, Answer(429))) as server:
        found = list(predict(AsyncRemote(server.url), range(50), fallback=Acting(negative)))
    assert found == [2 * n for n in range(50)]


@pytest.mark.parametrize(("kind", "headers"), [(Remote, {}), (AsyncRemote, {"Retry-After": "600"})])
def test_endpoint_that_goes_on_refusing_is_replaced(kind, headers):
    with serving(lambda *_: Answer(429, headers=headers)) as server:
        found = predict(kind(server.url), range(50), fallback=Acting(negative), retry=RetryConfig(timeout_secs=0.3))
        assert list(found) == [-n for n in range(50)]


def test_wrong_key_url_or_model_is_an_error_although_there_is_a_fallback():
    with serving(lambda *_: Answer(404)) as server:
        with pytest.raises(EndpointError, match="refused the first request"):
            list(predict(Remote(server.url), range(5), fallback=Acting(negative), on_failure="yield"))
        with pytest.raises(EndpointError, match="refused the first request"):
            list(predict(Acting(each(refuse(1))), range(5), fallback=Remote(server.url), on_failure="yield"))


def test_request_that_takes_too_long_is_answered_by_the_fallback():
    with serving(for_example(3, Answer(delay=120))) as server, serving() as other:
        handler, fallback = Remote(server.url), AsyncRemote(other.url).with_postprocess_fn(abs)
        predictions = predict(handler, range(-1, 5), fallback=fallback, ordered=False, timeout=LIMIT_SECS)
        assert sorted(next(predictions) for _ in range(5)) == [-2, 0, 2, 4, 8]
        leap()
        assert list(predictions) == [6]
        assert other.requests == [[3]]


class Unconnected(Remote):
    def __init__(self, error):
        super().__init__("http://localhost")
        self.error = error

    def create_client(self):
        raise self.error


@pytest.mark.parametrize("preprocessed", [False, True])
def test_endpoint_whose_client_cannot_be_made_for_now_fails_what_it_is_for_and_no_more(preprocessed):
    handler, gone = Acting(each(refuse(3)), max_batch_size=2), Unconnected(ConnectionError("no route"))
    handler = handler.with_preprocess_fn(int) if preprocessed else handler
    options = {"on_failure": "yield", "retry": RetryConfig(attempts=1)}
    *good, failure = sorted(
        predict(handler, range(5), fallback=gone, **options), key=lambda one: isinstance(one, Failure)
    )
    assert good == [0, 1, 2, 4]
    assert str(failure.error) == "KeyError: 3; the fallback failed, too: ConnectionError: no route"
    assert list(predict(gone, range(5), fallback=Acting(negative), **options)) == [0, -1, -2, -3, -4]


@pytest.mark.parametrize("handler", [Acting(), Acting(each(refuse(3)))], ids=["unneeded", "needed"])
def test_endpoint_whose_client_can_never_be_made_is_an_error_before_any_outcome(handler):
    with pytest.raises(ValueError, match="no key"):
        list(predict(handler, range(5), fallback=Unconnected(ValueError("no key")), on_failure="yield"))


class Held(RemoteModelHandler):
    """Answers once an event is set."""

    def __init__(self):
        super().__init__()
        self.goes_on = threading.Event()
        self.asked = []

    def create_client(self):
        return None

    async def request(self, batch, model, inference_args=None):
        self.asked += batch
        await asyncio.get_running_loop().run_in_executor(None, self.goes_on.wait, 60)
        return [-one for one in batch]


def test_bundle_that_is_abandoned_leaves_nothing_to_the_next_one(close_later):
    held = Held()
    worker = worker_for(Acting(each(refuse(3)), max_batch_size=1), held, close_later, batching=fixed(1))
    try:
        worker.bundle(Events()).add(3, "abandoned")
        assert wait_until(lambda: held.asked)
        bundle = worker.bundle(Events())
        outcomes = [*bundle.add(3, "kept")]
        held.goes_on.set()
        outcomes += bundle.finish()
    finally:
        held.goes_on.set()
    assert [(one.tags, one.values) for one in outcomes] == [(["kept"], [-3])]


def test_a_first_request_that_was_refused_and_abandoned_holds_up_no_other(opened):
    with serving(for_first(1, Answer(429, headers={"Retry-After": "200"}))) as server:
        worker = opened(prepare(AsyncRemote(server.url), InferenceRequest(batching=fixed(1))))
        worker.bundle(Events()).add(3, "refused")
        assert wait_until(lambda: worker.session.endpoints.of(ONLY)._first)
        bundle = worker.bundle(Events())
        outcomes = [*bundle.add(4, "kept"), *bundle.finish()]
    assert [(one.tags, one.values) for one in outcomes] == [(["kept"], [8])]


class Told(RemoteModelHandler):
    """Treats each example as its place in a list says."""

    def __init__(self, what, size, added):
        super().__init__(num_retries=1)
        self.what = what
        self.size = size
        self.added = added

    def create_client(self):
        return None

    async def request(self, batch, model, inference_args=None):
        await asyncio.sleep(0)
        if any(self.what[one] == "raises" for one in batch):
            raise ValueError("raised")
        return [self.answer(one) for one in batch]

    def answer(self, example):
        what = self.what[example]
        if what == "fails":
            return ElementFailure(KeyError("failed"))
        return ElementRetry(OSError("busy")) if what == "retried" else example + self.added

    def batch_elements_kwargs(self):
        return {"min_batch_size": self.size, "max_batch_size": self.size}


FATES = st.lists(st.sampled_from(["answered", "answered", "raises", "fails", "retried"]), min_size=12, max_size=12)


@pytest.mark.parametrize("is_local", [False, True])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(FATES, FATES, st.integers(1, 4), st.integers(1, 4))
def test_nothing_is_lost_whatever_two_endpoints_answer(is_local, fates, others, size, other_size):
    fallback = Acting(each(refuse(3)), max_batch_size=2) if is_local else Told(others, other_size, 2000)
    outcomes = list(predict(Told(fates, size, 1000), range(12), fallback=fallback, on_failure="yield"))
    assert len(outcomes) == 12
    for place, outcome in enumerate(outcomes):
        if isinstance(outcome, Failure):
            assert (outcome.element, type(outcome.error)) == (place, FallbackError)
        else:
            assert outcome % 1000 == place
            assert outcome < 1000 or (fates if outcome < 2000 else others)[place] == "answered"
