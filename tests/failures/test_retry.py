"""Which errors are transient, and the two bounds of retrying."""

from __future__ import annotations

import http.client
import urllib.error
from types import SimpleNamespace

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from headrace import RetryConfig
from headrace.core.errors import HostDiedError, PredictionCountError
from headrace.failures.retry import RetryBudget, RetryTokens, is_retryable, is_transient
from headrace.testing import FakeClock
from toys import with_attributes


def error_with(**attributes):
    return with_attributes(RuntimeError(), **attributes)


class Code:
    """As an error of gRPC has it."""

    name = "UNAVAILABLE"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (urllib.error.HTTPError("http://localhost", 503, "busy", None, None), True),
        (urllib.error.HTTPError("http://localhost", 400, "bad", None, None), False),
        (requests.ConnectionError(), True),
        (requests.ReadTimeout(), True),
        (requests.exceptions.ChunkedEncodingError(), True),
        (http.client.IncompleteRead(b""), True),
        (type("ServerDisconnectedError", (type("ClientConnectionError", (Exception,), {}),), {})(), True),
        (requests.exceptions.InvalidURL(), False),
        (type("ReadError", (type("TransportError", (Exception,), {}),), {})(), True),
        (error_with(status_code=429), True),
        (error_with(response=SimpleNamespace(status_code=502)), True),
        (error_with(response=SimpleNamespace(status_code=404)), False),
        (error_with(code=Code), True),
        (error_with(code=lambda: 1 / 0), False),
        (error_with(retryable=True), True),
        (error_with(retryable=False, status_code=429), False),
        (error_with(code="429"), False),
        (HostDiedError("it died"), True),
        (PredictionCountError("one for each"), False),
        (ValueError("out of cheese"), False),
        (FileNotFoundError("model.pkl"), False),
        (MemoryError(), False),
    ],
    ids=repr,
)
def test_transient_errors_are_recognized(error, expected):
    assert is_transient(error) is expected


def test_an_error_that_cannot_be_classified_is_not_transient(caplog):
    """Neither the error of a function of the user's nor one of the error's own properties takes the error's place."""

    class Odd(Exception):
        @property
        def response(self):
            raise KeyError("no response")

    for error, retryable in ((Odd(), None), (ConnectionError(), lambda error: error.nothing)):
        assert not is_retryable(error, RetryConfig(retryable=retryable))
    assert [bool(record.exc_info) for record in caplog.records] == [True], "only the user's function is at fault"


def budget(clock, jitter=0.5, **config):
    return RetryBudget(RetryConfig(**config), clock.time_ns, clock.sleep, lambda: jitter)


def test_pauses_grow_to_their_maximum():
    clock = FakeClock()
    waits, pauses = budget(clock, jitter=1.0, attempts=9, timeout_secs=1000), []
    clock.advance(2000)  # as long as the first try takes
    for failed in range(1, 9):
        before = clock.seconds()
        assert waits.allows_retry(ConnectionError(), failed)
        pauses.append(round(clock.seconds() - before))
    assert pauses == [1, 2, 4, 8, 16, 20, 20, 20]
    assert not waits.allows_retry(ConnectionError(), 9)


def test_permanent_errors_are_not_waited_for():
    clock = FakeClock()
    before = clock.time_ns()
    assert not budget(clock).allows_retry(ValueError(), 1)
    assert not budget(clock, attempts=1).allows_retry(ConnectionError(), 1)
    assert clock.time_ns() == before


def test_the_user_may_say_which_errors_are_transient():
    clock = FakeClock()
    waits = budget(clock, retryable=lambda error: "busy" in str(error))
    assert waits.allows_retry(ValueError("busy"), 1)
    assert not waits.allows_retry(ConnectionError("lost"), 1)


@given(st.integers(1, 20), st.floats(0.1, 100), st.floats(0, 0.999), st.floats(0, 50))
def test_both_bounds_hold(attempts, timeout_secs, jitter, took):
    clock = FakeClock()
    waits, failed = budget(clock, jitter=jitter, attempts=attempts, timeout_secs=timeout_secs), 1
    last = before = clock.seconds()
    while waits.allows_retry(ConnectionError(), failed):
        last, failed = clock.seconds(), failed + 1
        clock.advance(took)
    assert failed <= attempts
    assert last - before <= timeout_secs + 1e-3


def test_retries_cost_more_than_successes_bring_back():
    tokens = RetryTokens()
    assert sum(tokens.take(ValueError()) > 0 for _ in range(200)) == 100
    for _ in range(10):
        tokens.succeeded()
    assert [tokens.take(TimeoutError()), tokens.take(ValueError())] == [10, 0]


@pytest.mark.parametrize("error", [ValueError(), TimeoutError()])
def test_retries_that_help_cost_nothing(error):
    tokens = RetryTokens()
    for _ in range(1000):
        paid = [tokens.take(error) for _ in range(5)]
        assert all(paid)
        tokens.succeeded(sum(paid))
