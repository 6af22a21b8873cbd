"""What becomes of requests to a KServe server that is slow, away or not what it seems."""

from __future__ import annotations

import threading

import numpy
import pytest
from kserve_endpoint import serving
from test_kserve_inference import ROWS, asking, inferences

from headrace import EndpointError, PredictionCountError, RetryConfig, predict
from headrace.handlers.json_answers import InvalidAnswerError
from headrace.handlers.kserve_inference import KServeModelHandler
from http_endpoint import Answer, events_and_outcomes, failures_among
from http_endpoint import serving as serving_http
from openai_endpoint import self_signed

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end")

BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])


@BOTH
def test_request_that_takes_too_long_fails_and_is_sent_again(protocol):
    hanging = threading.Event()

    def fault(model, shapes, before):
        return None if before else hanging.wait(60) and None

    with serving(protocol, fault=fault) as server:
        try:
            assert inferences(predict(asking(server, timeout_secs=0.5), ROWS[:1])) == [3.5]
        finally:
            hanging.set()
        assert len(server.requests) == 2


def test_server_that_is_away_is_waited_for(closed_port):
    """Over gRPC its status says no more than that."""
    options = {"retry": RetryConfig(timeout_secs=0.2)}
    with pytest.raises(EndpointError, match=r"nobody has answered for 0\.2 s"):
        events_and_outcomes(KServeModelHandler(f"127.0.0.1:{closed_port}", "total"), ROWS[:1], **options)
    handler = KServeModelHandler(f"127.0.0.1:{closed_port}", "total", protocol="grpc")
    (failure,) = failures_among(events_and_outcomes(handler, ROWS[:1], **options)[1])
    assert "UNAVAILABLE" in str(failure.error)


@BOTH
def test_server_that_comes_back_is_used_at_once(protocol, closed_port):
    handler = KServeModelHandler(f"127.0.0.1:{closed_port}", "total", protocol=protocol)
    found = []
    asking = threading.Thread(target=lambda: found.extend(predict(handler, ROWS)))
    asking.start()
    with serving(protocol, port=closed_port):
        asking.join(120)
    assert inferences(found) == [n + 3.5 for n in range(5)]


METADATA = Answer(body={"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]})


def output(name="y", **changes):
    return {"name": name, "datatype": "FP32", "shape": [1], "data": [3.5], **changes}


@pytest.mark.parametrize("answer", [Answer(cut=True), Answer(body={"outputs": [output()]}, cut_body=True)])
def test_answer_that_is_cut_is_asked_for_again(answer):
    answers = [Answer(body={"outputs": [output()]}), answer, answer]
    with serving_http(lambda asked, before: METADATA if asked is None else answers.pop()) as server:
        handler = KServeModelHandler(server.url, "total")
        assert inferences(predict(handler, ROWS[:1])) == [3.5]
    assert answers == []


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[" * 2000 + b"]" * 2000, b"null", [1], {"outputs": None}, {"outputs": 7}, {"outputs": [{}]}),
        *({"outputs": [output(data=data)]} for data in ("a", None, {}, [[1, 2]], [1, 2])),
        {"outputs": [output(name=["y"])]},
        {"outputs": [output(), output()]},
        {"outputs": [output(), output(data=[4.5])]},
        {"outputs": []},
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_answer_that_cannot_be_read_is_its_examples_dead_letter_at_once(body, size):
    with serving_http(lambda asked, before: METADATA if asked is None else Answer(body=body)) as server:
        handler = KServeModelHandler(server.url, "total", max_batch_size=size)
        _, outcomes = events_and_outcomes(handler, ROWS[:1])
        assert len([asked for asked in server.requests if asked is not None]) == 1
    (failure,) = failures_among(outcomes)
    assert type(failure.error) in (InvalidAnswerError, PredictionCountError)


@BOTH
def test_outputs_are_those_that_the_user_names(protocol):
    with serving(protocol) as server:
        pairs = [{"a": 1, "b": 2}]
        handler = asking(server, "mixed", outputs=["sum", "other"])
        _, (failure,) = events_and_outcomes(handler, pairs)
        assert len(server.requests) == 1
        assert inferences(predict(asking(server, "mixed", outputs=["first"]), pairs)) == [1]
    assert str(failure.error) == "the model answered without the output 'other'; it has 'sum'."


def test_certificate_that_is_not_trusted_is_one_error(tmp_path):
    untrusted = pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED")
    with serving_http(lambda asked, before: Answer(), tls=self_signed(tmp_path)) as server, untrusted:
        list(predict(KServeModelHandler(server.url, "total"), ROWS))


def test_page_of_a_web_site_is_no_model():
    no_model = pytest.raises(EndpointError, match="no model 'total': status 404: <html>Not here")
    with serving_http(lambda asked, before: Answer(404, b"<html>Not here</html>")) as server, no_model:
        list(predict(KServeModelHandler(server.url, "total"), ROWS))


@BOTH
def test_large_answers_are_read(protocol):
    """More than the 4 MB that gRPC allows unless told otherwise."""
    with serving(protocol) as server:
        (found,) = inferences(predict(asking(server, "unsaid"), [numpy.zeros(1_000_000)]))
        assert found.nbytes == 8_000_000
