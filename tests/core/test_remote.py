"""The remote contract: what a subclass must and must not define."""

from __future__ import annotations

import pytest

from headrace import ConfigurationError, ElementFailure, ElementRetry, RemoteModelHandler
from headrace.core import remote


class Echo(RemoteModelHandler):
    def create_client(self):
        return "client"

    def request(self, batch, model, inference_args=None):
        return batch


@pytest.mark.parametrize(("method", "instead"), [("load_model", "create_client"), ("run_inference", "request")])
def test_methods_that_headrace_calls_cannot_be_overridden(method, instead):
    with pytest.raises(TypeError, match=f"Cannot override RemoteModelHandler.{method}, implement {instead}"):
        type("Bad", (Echo,), {method: lambda self: None})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_retries": -1}, "num_retries must be an int"),
        ({"model_copies": 2}, "its model behind an endpoint: leave out model_copies"),
        ({"retry_filter": True}, "retry_filter must be a function"),
        ({"rate_limiter": 5}, "rate_limiter must have a method allow"),
        ({"requests_per_minute": 0}, "requests_per_minute must be a positive number, or None for no limit, not 0"),
        ({"requests_per_minute": "60"}, "requests_per_minute must be a positive number"),
        ({"tokens_per_minute": float("inf")}, "tokens_per_minute must be a positive number"),
        ({"tokens_per_minute": True}, "tokens_per_minute must be a positive number"),
    ],
)
def test_wrong_arguments_are_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        Echo(**options)


class Flaky(Echo):
    def __init__(self, failures, **options):
        super().__init__(**options)
        self.failures = failures

    async def request(self, batch, model, inference_args=None):
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("lost")
        return [ElementFailure(KeyError(example)) if example == "bad" else example for example in batch]


def test_run_inference_sends_one_request_and_retries(monkeypatch):
    monkeypatch.setattr(remote, "pause_before_retry", lambda failed: 0.0)
    assert list(Echo().run_inference([1, 2], "client")) == [1, 2]
    assert Flaky(2, num_retries=2).run_inference([1], "client") == [1]
    with pytest.raises(ConnectionError):
        Flaky(2, num_retries=1).run_inference([1], "client")
    with pytest.raises(KeyError):
        Flaky(0, num_retries=0).run_inference([1, "bad"], "client")


def test_run_inference_requests_nothing_again_that_failed_for_good():
    class Refused(Flaky):
        async def request(self, batch, model, inference_args=None):
            self.failures += 1
            return [*batch, ElementFailure(ValueError("unreadable")), ElementRetry(OSError("busy"))]

    handler = Refused(0)
    with pytest.raises(ValueError, match="unreadable"):
        handler.run_inference([1, 2, 3], "client")
    assert handler.failures == 1


def test_pauses_double_up_to_the_longest(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 1.0)
    assert [remote.pause_before_retry(failed) for failed in (1, 2, 3, 9)] == [1, 2, 4, 20]
