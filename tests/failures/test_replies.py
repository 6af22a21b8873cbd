"""What the errors of HTTP and gRPC clients say: about the endpoint, about another try, and about when."""

from __future__ import annotations

import asyncio
import email.message
import http.client
import socket
import ssl
import urllib.error
from types import SimpleNamespace

import pytest

from headrace import ElementRetry, EndpointError, PredictionCountError
from headrace.core.remote import always_retry
from headrace.failures.outages import Verdict
from headrace.failures.replies import (
    EndpointRecord,
    Judgement,
    concerns_all,
    is_final,
    judge,
    judge_element,
    retry_after,
)


class ClientError(Exception):
    def __init__(self, **attributes):
        super().__init__("as a client raises it")
        vars(self).update(attributes)


def with_headers(**headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ClientError(response=SimpleNamespace(headers=named))


def caused_by(cause, **attributes):
    error = ClientError(**attributes)
    error.__cause__ = cause
    return error


class GrpcError(Exception):
    def __init__(self, name):
        super().__init__(name)
        self.name = name

    def code(self):
        return SimpleNamespace(name=self.name)


def http_error(status, headers=()):
    message = email.message.Message()
    for name, value in dict(headers).items():
        message[name] = value
    return urllib.error.HTTPError("http://localhost", status, "no", message, None)


@pytest.mark.parametrize(
    ("error", "verdict", "retries"),
    [
        (ClientError(status_code=429), Verdict.REFUSED, True),
        (ClientError(status=429), Verdict.REFUSED, True),
        (ClientError(response=SimpleNamespace(status_code=429)), Verdict.REFUSED, True),
        (GrpcError("RESOURCE_EXHAUSTED"), Verdict.REFUSED, True),
        (ClientError(status_code=503), Verdict.UNAVAILABLE, True),
        (ClientError(status_code=529), Verdict.UNAVAILABLE, True),
        (GrpcError("UNAVAILABLE"), Verdict.UNAVAILABLE, True),
        (ConnectionRefusedError(), Verdict.UNAVAILABLE, True),
        (urllib.error.URLError(ConnectionRefusedError()), Verdict.UNAVAILABLE, True),
        (caused_by(ConnectionRefusedError()), Verdict.UNAVAILABLE, True),
        (caused_by(caused_by(socket.gaierror())), Verdict.UNAVAILABLE, True),
        (ConnectionResetError(), Verdict.FAILED, True),
        (TimeoutError(), Verdict.FAILED, True),
        (caused_by(http.client.IncompleteRead(b"")), Verdict.FAILED, True),
        (asyncio.IncompleteReadError(b"", 1), Verdict.FAILED, True),
        (urllib.error.URLError(ConnectionResetError()), Verdict.FAILED, True),
        (ClientError(status_code=500), Verdict.FAILED, True),
        (ClientError(status=502), Verdict.FAILED, True),
        (ClientError(code=504), Verdict.FAILED, True),
        (GrpcError("INTERNAL"), Verdict.FAILED, True),
        (GrpcError("DEADLINE_EXCEEDED"), Verdict.FAILED, True),
        (ClientError(status_code=408), Verdict.DECLINED, True),
        (caused_by(ConnectionRefusedError(), status_code=500), Verdict.UNAVAILABLE, True),  # LiteLLM's, as the next
        (caused_by(TimeoutError(), status_code=408), Verdict.FAILED, True),
        (caused_by(TimeoutError(), status_code=400), Verdict.DECLINED, False),  # after a try that the client made
        (caused_by(ConnectionRefusedError(), status_code=401), Verdict.NOTHING, False),
        (ValueError("anything"), Verdict.NOTHING, True),
        (ClientError(status_code=400), Verdict.DECLINED, False),
        (ClientError(status_code=401), Verdict.NOTHING, False),
        (ClientError(status_code=413), Verdict.DECLINED, False),
        (GrpcError("INVALID_ARGUMENT"), Verdict.DECLINED, False),
        (PredictionCountError(), Verdict.NOTHING, False),
        (SystemExit(1), Verdict.NOTHING, False),
    ],
    ids=repr,
)
def test_errors_are_judged_by_what_clients_set_on_them(error, verdict, retries):
    assert judge(error, always_retry)[:2] == (verdict, retries)


def test_filter_has_the_last_word_on_what_may_pass():
    assert not judge(ClientError(status_code=429), lambda error: False).retries
    assert judge(ClientError(status_code=500), lambda error: False)[:2] == (Verdict.NOTHING, False)
    assert not judge(ValueError(), lambda error: error.misspelt).retries
    assert not judge(ClientError(status_code=401), lambda error: True).retries


@pytest.mark.parametrize(("status", "for_all"), [(401, True), (403, True), (404, True), (400, False), (429, False)])
def test_wrong_keys_and_models_concern_all(status, for_all):
    assert concerns_all(ClientError(status_code=status)) is for_all
    assert concerns_all(GrpcError("UNAUTHENTICATED"))


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (with_headers(Retry_After="7"), 7),
        (with_headers(retry_after="0.25"), 0.25),
        (with_headers(Retry_After="3", Retry_After_Ms="120"), 0.12),
        (with_headers(Retry_After="Thu, 01 Jan 1970 00:01:40 GMT"), 90),
        (with_headers(Retry_After="Thu, 01 Jan 1970 00:00:00 GMT"), 0),
        (with_headers(Retry_After="soon"), 0),
        (with_headers(Retry_After="inf"), 0),
        (with_headers(), 0),
        (http_error(429, {"Retry-After": "5"}), 5),
        (ClientError(retry_after=2), 2),
        (ClientError(retry_after="later"), 0),
        (ValueError(), 0),
    ],
)
def test_delays_are_read_from_headers(error, seconds, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 10.0)
    assert retry_after(error) == seconds


def test_element_that_is_to_be_requested_again_may_name_its_delay():
    refused = ClientError(status_code=429)
    assert judge_element(ElementRetry(refused, 3.0)) == (Verdict.REFUSED, True, 3.0)
    assert judge_element(ElementRetry(with_headers(Retry_After="7"))).delay_secs == 7
    assert judge_element(ElementRetry(ValueError())).waits is False


def test_failure_waits_while_the_endpoint_is_down():
    failed = judge(ClientError(status_code=500), always_retry)
    assert (failed.waits, failed.while_down().waits) == (False, True)
    assert judge(ValueError(), always_retry).while_down().waits is False


class CertificateErrorOfAClient(ssl.SSLError):
    """As aiohttp makes them: without a reason of its own."""

    reason = property()


@pytest.mark.parametrize("reason", ["CERTIFICATE_VERIFY_FAILED", "SOMETHING_ELSE"])
def test_untrusted_certificate_is_found_beneath_a_clients_error(reason):
    error = CertificateErrorOfAClient()
    error.__cause__ = ssl.SSLError(1, "no")
    error.__cause__.reason = reason
    assert not hasattr(error, "reason")
    assert is_final(error) is concerns_all(error) is (reason == "CERTIFICATE_VERIFY_FAILED")


def test_error_that_cannot_be_read_is_judged_nevertheless():
    class Unreadable(Exception):
        def __getattr__(self, name):
            raise RuntimeError("the request instance has not been set")

    assert judge(Unreadable("lost"), lambda _: True) == Judgement(Verdict.NOTHING, True, 0.0)
    assert not concerns_all(Unreadable("lost"))


def test_requests_are_told_apart_only_where_that_matters():
    def error_of(error, key):
        return record.error_of_all(error, lambda: keys.append(key) or key, "H", waited_secs=None, is_caught=True)

    record, keys = EndpointRecord(), []
    assert error_of(ValueError(), 1) is error_of(ClientError(status_code=500), 2) is None
    assert keys == []
    assert error_of(ClientError(status_code=401), 3) is error_of(ClientError(status_code=401), 3) is None
    assert isinstance(error_of(ClientError(status_code=404), 4), EndpointError)
    assert isinstance(error_of(ClientError(status_code=404), 5), EndpointError)
    assert keys == [3, 3, 4]
    assert error_of(ClientError(status_code=400), 6) is error_of(ClientError(status_code=404), 6) is None
