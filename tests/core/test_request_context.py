"""What a handler reports during a request reaches the run's metrics and the request's limit, however it ends."""

from __future__ import annotations

import contextvars
import math
import threading
from contextlib import contextmanager

import numpy
import pytest

from headrace import ConfigurationError, RemoteModelHandler, report_generation, report_rate_limit, report_usage
from headrace.core.events import UsageReported
from headrace.core.request_context import (
    Allowance,
    RequestState,
    allowances,
    also_report_to,
    current_request,
    request_context,
)
from http_endpoint import events_and_outcomes, failures_among
from toys import Acting


@contextmanager
def usage_to(sink):
    token = current_request.set(RequestState((sink,)))
    yield
    current_request.reset(token)


def used(events):
    return [event for event in events if isinstance(event, UsageReported)]


def test_report_outside_a_request_does_nothing():
    assert report_usage("m", input_tokens=1) is None
    assert report_rate_limit({"x-ratelimit-remaining": "0"}) is None


@pytest.mark.parametrize(
    ("report", "wrong"),
    [
        *((report_usage, wrong) for wrong in ({"model": ""}, {"model": None}, {"input_tokens": -1})),
        *((report_usage, wrong) for wrong in ({"output_tokens": 1.5}, {"input_tokens": numpy.array(1.5)})),
        (report_usage, {"input_tokens": 2, "cached_tokens": 3}),
        *((report_generation, {"seconds": 1.0, **wrong}) for wrong in ({"seconds": -1.0}, {"seconds": "1"})),
        *((report_generation, {"seconds": 1.0, **wrong}) for wrong in ({"first_token_secs": math.nan}, {"model": 1})),
    ],
)
def test_report_that_is_wrong_is_refused(report, wrong):
    with pytest.raises(ConfigurationError, match="report_"):
        report(**{"model": "m", "input_tokens": 1, "output_tokens": 1, **wrong})


def test_generation_is_usage_with_times():
    found = []
    with usage_to(found.append):
        report_generation("m", input_tokens=1, output_tokens=2, seconds=3.0)
    assert found == [UsageReported("m", 1, 2, seconds=3.0)]


def test_report_goes_to_the_sink_of_its_context_only():
    mine, others = [], []
    context = request_context(others.append)
    with usage_to(mine.append):
        report_usage("a", input_tokens=1)
        context.run(report_usage, "b")
        thread = threading.Thread(target=contextvars.copy_context().run, args=(report_usage, "c"))
        thread.start()
        thread.join()
    report_usage("nobody")
    assert mine == [UsageReported("a", 1, 0), UsageReported("c", 0, 0)]
    assert others == [UsageReported("b", 0, 0)]


def test_request_that_is_given_up_is_counted_when_it_reports():
    given_up, reported = threading.Event(), threading.Event()

    class Slow(RemoteModelHandler):
        def create_client(self):
            return None

        def request(self, batch, model, inference_args=None):
            if batch == [1]:
                given_up.wait()
            else:
                given_up.set()
                reported.wait()
            report_usage("m", input_tokens=1)
            reported.set()
            return batch

        def batch_elements_kwargs(self):
            return {"max_batch_size": 1}

    events, outcomes = events_and_outcomes(Slow(), [1, 2], timeout_secs=0.2)
    assert [failure.element for failure in failures_among(outcomes)] == [1]
    assert used(events) == [UsageReported("m", 1, 0)] * 2


def test_calls_of_a_local_model_are_counted_with_their_lazy_answers():
    def act(batch):
        report_usage("eager", input_tokens=1)
        for one in batch:
            report_usage("lazy", output_tokens=1)
            yield one

    events, _ = events_and_outcomes(Acting(act, min_batch_size=2, max_batch_size=2), [1, 2])
    assert used(events) == [UsageReported("eager", 1, 0), *[UsageReported("lazy", 0, 1)] * 2]


def test_headers_go_to_the_request_of_their_context_and_usage_to_the_run_as_well():
    of_the_run, of_the_request, allowed = [], [], []

    def request():
        also_report_to(of_the_request.append, allowed.extend)
        report_rate_limit({"X-RateLimit-Remaining": 5, "X-RateLimit-Reset": 3})
        report_usage("m")

    request_context(of_the_run.append).run(request)
    report_rate_limit({"X-RateLimit-Remaining": 6, "X-RateLimit-Reset": 3})
    assert allowed == [Allowance(False, 5, 3, None)]
    assert of_the_run == of_the_request == [UsageReported("m", 0, 0)]


@pytest.mark.parametrize("wrong", [None, 5, "text", ["a"]], ids=repr)
def test_headers_that_are_no_mapping_are_refused(wrong):
    with pytest.raises(ConfigurationError, match="report_rate_limit needs an answer's headers"):
        report_rate_limit(wrong)


@pytest.fixture
def _now(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)


def openai(kind, remaining, reset, limit="60"):
    return {
        f"x-ratelimit-limit-{kind}": limit,
        f"x-ratelimit-remaining-{kind}": remaining,
        f"x-ratelimit-reset-{kind}": reset,
    }


def anthropic(kind, remaining, reset):
    names = {"limit": "50", "remaining": remaining, "reset": reset}
    return {f"anthropic-ratelimit-{kind}-{name}": value for name, value in names.items()}


@pytest.mark.parametrize(
    ("headers", "allowance"),
    [
        (openai("requests", "59", "1s"), Allowance(False, 59, 1.0, 60)),
        (openai("requests", "0", "6m0s"), Allowance(False, 0, 360.0, 60)),
        (openai("tokens", "149984", "12ms", "150000"), Allowance(True, 149984, 0.012, 150000)),
        (openai("tokens", "5", "1h2m3.5s"), Allowance(True, 5, 3723.5, 60)),
        (openai("requests", "5", "7.66"), Allowance(False, 5, 7.66, 60)),
        (anthropic("requests", "0", "2023-11-14T22:13:30Z"), Allowance(False, 0, 10.0, 50)),
        (anthropic("input-tokens", "7", "2023-11-14T22:13:30+00:00"), Allowance(True, 7, 10.0, 50)),
        (anthropic("tokens", "7", "2023-11-14T22:13:10Z"), Allowance(True, 7, 0.0, 50)),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "1700000005"}, Allowance(False, 3, 5.0, None)),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "30"}, Allowance(False, 0, 30.0, None)),
    ],
)
@pytest.mark.usefixtures("_now")
def test_headers_are_understood(headers, allowance):
    assert allowances(headers) == [allowance]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/html"},
        openai("requests", "many", "1s"),
        openai("requests", "-1", "1s"),
        openai("requests", "inf", "1s"),
        openai("requests", "5", "soon"),
        openai("requests", "5", ""),
        openai("requests", "5", "1s and more"),
        {"x-ratelimit-remaining-requests": "5"},
    ],
    ids=repr,
)
def test_headers_that_are_not_understood_say_nothing(headers):
    assert allowances(headers) == []


def test_several_limits_are_all_found():
    assert len(allowances(openai("requests", "1", "1s") | openai("tokens", "2", "2s"))) == 2


@pytest.mark.parametrize(
    ("allowance", "needed", "wait"),
    [
        (Allowance(False, 1, 60.0, 60), 1, 0),
        (Allowance(False, 0, 60.0, 60), 1, 1),
        (Allowance(True, 500, 60.0, 60500), 1500, 1),
        (Allowance(False, 0, 30.0, None), 1, 30),
        (Allowance(True, 0, 30.0, 50), 1500, 30),
        (Allowance(False, 0, 30.0, 0), 1, 30),
    ],
)
def test_wait_is_as_long_as_the_quota_takes_to_be_refilled(allowance, needed, wait):
    assert allowance.wait(needed) == pytest.approx(wait)
