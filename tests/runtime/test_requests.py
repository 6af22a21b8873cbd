"""Requests to a server on localhost: side by side, repeated as the server asks, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from headrace import (
    ElementFailure,
    ElementRetry,
    EndpointError,
    KeyedModelHandler,
    PredictionCountError,
    RemoteModelHandler,
    RetryConfig,
    predict,
)
from headrace.core.events import BatchCompleted, BatchFailed, BatchRetried
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import HandlerContract
from http_endpoint import (
    Answer,
    AsyncRemote,
    Remote,
    events_and_outcomes,
    failures_among,
    for_example,
    for_first,
    once,
    serving,
)
from leap import LIMIT_SECS, leap
from toys import fixed, run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels")

BOTH = pytest.mark.parametrize("kind", [Remote, AsyncRemote])


@BOTH
def test_predictions_come_back_with_their_elements(kind):
    with serving() as server:
        handler = KeyedModelHandler(kind(server.url, size=3)).with_preprocess_fn(lambda pair: (pair[0], pair[1] + 1))
        handler = handler.with_postprocess_fn(lambda pair: (*pair, "done"))
        found = list(predict(handler, [(str(n), n) for n in range(50)], inference_args={"plus": 1}))
    assert found == [(str(n), 2 * (n + 2), "done") for n in range(50)]


@BOTH
def test_requests_are_side_by_side(kind):
    """The last request is answered only when others are in flight.

    All take a while: next to nothing, a busy machine makes of it several times as much, which looks like a queue.
    """
    waiting = threading.Barrier(3)

    def answer(examples, before):
        if examples[0] >= 197:
            waiting.wait(30)
        return Answer(delay=0.02)

    with serving(answer) as server:
        assert list(predict(kind(server.url), range(200))) == [2 * n for n in range(200)]


@BOTH
@pytest.mark.parametrize("refusal", [Answer(429, headers={"Retry-After": "0.3"}), Answer(503)], ids=["429", "503"])
def test_requests_that_are_refused_are_repeated_as_the_server_asks_and_spend_no_retries(kind, refusal, monkeypatch):
    monkeypatch.setattr("random.random", lambda: 0.0)  # else a request that is refused pauses longer, by chance
    began = time.monotonic()
    with serving(for_first(3, refusal)) as server:
        events, outcomes = events_and_outcomes(kind(server.url, num_retries=0), range(5))
        assert len(server.requests) == 8
    assert time.monotonic() - began >= float(refusal.headers.get("Retry-After", 0))
    assert sorted(outcomes) == [0, 2, 4, 6, 8]
    assert len(events.of(BatchRetried)) == 3
    assert len(events.of(BatchCompleted)) == 5


@BOTH
def test_server_that_is_not_there_yet_is_waited_for(kind, closed_port, nobody):
    predictions = predict(kind(nobody), range(3))
    with ThreadPoolExecutor(1) as asking:
        found = asking.submit(list, predictions)
        with serving(address=("127.0.0.1", closed_port)):
            assert found.result(60) == [0, 2, 4]


@pytest.mark.parametrize("url", [None, "http://no-such-host.invalid/"])
def test_server_that_was_never_there_is_one_error(url, nobody):
    message = r"Remote: nobody has answered for 0.2 s: .*Check the URL, or wait for longer with RetryConfig"
    with pytest.raises(EndpointError, match=message):
        list(predict(Remote(url or nobody), range(100), on_failure="yield", retry=RetryConfig(timeout_secs=0.2)))


def test_retry_filter_decides_what_is_repeated_and_waited_for(nobody):
    _, outcomes = events_and_outcomes(Remote(nobody, retry_filter=lambda error: False), range(3))
    assert [type(one.error.reason) for one in failures_among(outcomes)] == [ConnectionRefusedError] * 3
    with serving(once(Answer(500))) as server:
        _, outcomes = events_and_outcomes(Remote(server.url, retry_filter=lambda error: False), [1, 2])
        assert len(server.requests) == 2
    assert len(failures_among(outcomes)) == 1


def test_plain_client_is_released_after_its_last_request_although_some_failed():
    clients = []

    class Client(str):
        """Has a URL, and can be weakly referenced."""

    class Releasing(Remote):
        def create_client(self):
            client = Client(self.url)
            clients.append(weakref.ref(client))
            return client

    gc.collect()
    gc.disable()
    try:
        with serving(for_example(3, Answer(400))) as server:
            _, outcomes = events_and_outcomes(Releasing(server.url), range(5))
        assert len(failures_among(outcomes)) == 1
        assert wait_until(lambda: [client() for client in clients] == [None])
    finally:
        gc.enable()


def test_bad_request_is_neither_retried_nor_bisected():
    with serving(for_example(3, Answer(400))) as server:
        events, outcomes = events_and_outcomes(Remote(server.url, size=3), range(6))
        assert sorted(server.requests) == [[0, 1, 2], [3, 4, 5]]
    assert [one.element for one in failures_among(outcomes)] == [3, 4, 5]
    assert [event.examples for event in events.of(BatchFailed)] == [3]


@pytest.mark.parametrize(
    ("status", "on_failure", "requests"), [(401, "yield", 2), (403, "raise", 1), (404, "yield", 2)]
)
def test_wrong_key_url_or_model_is_one_error_at_the_first_requests(status, on_failure, requests):
    """The second one tells whether the first one alone was refused, unless that one's error ends everything."""
    with serving(lambda examples, before: Answer(status)) as server:
        with pytest.raises(EndpointError, match=rf"Remote: the endpoint refused the first request.*{status}"):
            list(predict(Remote(server.url), range(100), on_failure=on_failure))
        assert len(server.requests) == requests


@BOTH
def test_refusal_of_the_first_element_alone_is_its_dead_letter(kind):
    with serving(for_example(0, Answer(401))) as server:
        failure, *others = predict(kind(server.url), range(20), on_failure="yield")
        assert sorted(server.requests) == [[element] for element in range(20)]
    assert (failure.element, failure.attempts, failure.error.status_code) == (0, 1, 401)
    assert others == [2 * element for element in range(1, 20)]


@pytest.mark.parametrize(("elements", "statuses"), [([3, 3, 3], {3: 404}), ([0, 1, 2], {0: 404, 1: 400, 2: 404})])
def test_refusals_of_equal_requests_or_not_in_a_row_do_not_tell_that_all_are_refused(elements, statuses):
    with serving(lambda examples, before: Answer(statuses.get(examples[0], 200))) as server:
        *failures, other = predict(Remote(server.url), [*elements, 4], on_failure="yield")
    assert ([failure.element for failure in failures], other) == (elements, 8)


def test_endpoint_that_has_answered_another_session_is_not_wrong():
    with serving(lambda examples, before: Answer(200 if examples[0] < 300 else 404)) as server:
        handler = Remote(server.url)
        for first in (0, 300):
            failures = list(predict(handler, range(first, first + 5), on_failure="yield"))
    assert [failure.error.status_code for failure in failures] == [404] * 5


def test_bundles_of_one_element_that_are_all_refused_end_at_the_second():
    with serving(lambda examples, before: Answer(403)) as server:
        spec = catching(prepare(Remote(server.url), InferenceRequest()), Exception)
        (failure,) = run_alone(spec, 0)
        assert failure.error.status_code == 403
        for element in (1, 2):
            with pytest.raises(EndpointError, match="refused the first request"):
                run_alone(spec, element)
        assert len(server.requests) == 3


def run_alone(spec, element):
    with closing(open_worker(spec)) as worker:
        return run(worker, [element])


@BOTH
def test_wrong_count_fails_the_batch_at_once(kind):
    with serving(lambda examples, before: Answer(body=[1])) as server:
        _, outcomes = events_and_outcomes(kind(server.url, size=2), range(2))
        assert len(server.requests) == 1
    assert [type(one.error) for one in outcomes] == [PredictionCountError] * 2
    assert f"{kind.__name__}.request was given 2 examples" in str(outcomes[0].error)


@pytest.mark.parametrize("kind", [pytest.param(Remote, marks=pytest.mark.large), AsyncRemote])
def test_timeout_costs_the_element_that_takes_too_long(kind):
    with serving(for_example(3, Answer(delay=60))) as server:
        predictions = predict(kind(server.url), range(5), on_failure="yield", ordered=False, timeout=LIMIT_SECS)
        assert sorted(next(predictions) for _ in range(4)) == [0, 2, 4, 8]
        leap()
        (failure,) = predictions
    assert isinstance(failure.error, TimeoutError)
    assert (failure.element, failure.attempts) == (3, 1)
    assert f"took longer than {LIMIT_SECS} s" in str(failure.error)


def test_delay_that_is_no_number_is_a_dead_letter_that_says_so():
    class Again(Tripled):
        async def request(self, batch, model, inference_args=None):
            return [ElementRetry(ValueError("later"), delay_secs="soon")]

    (failure,) = predict(Again(), [1], on_failure="yield")
    assert "delay_secs must be a number of seconds, not 'soon'" in str(failure.error)


def test_request_that_cannot_be_written_is_a_dead_letter_at_once():
    class Writing(Tripled):
        async def request(self, batch, model, inference_args=None):
            return [one.encode() for one in batch]

    failure, other = predict(Writing(), ["\ud800", "a"], on_failure="yield", batching=fixed(1))
    assert (failure.attempts, type(failure.error), other) == (1, UnicodeEncodeError, b"a")


class Tripled(RemoteModelHandler):
    def create_client(self):
        return 3

    async def request(self, batch, model, inference_args=None):
        await asyncio.sleep(0)
        return [one * model if one else ElementFailure(ValueError("nothing")) for one in batch]


class TestRemoteModelHandler(HandlerContract):
    def handler(self):
        return Tripled(num_retries=0)

    def bad_example(self):
        return 0

    def examples(self):
        return [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"placement": "machine"}, {"placement": "auto"}, {"ordered": False}])
def test_requests_are_sent_from_the_worker_wherever_models_are(options):
    assert sorted(predict(Tripled(), [1, 2], **options)) == [3, 6]
