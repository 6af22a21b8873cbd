"""Triton's clients ask a server on localhost that speaks the KServe protocol, over HTTP and gRPC, or is broken."""

from __future__ import annotations

import pickle
import threading
import time

import numpy
import pytest
from kserve_endpoint import DTYPES, Refusal, serving

from headrace import (
    ConfigurationError,
    EndpointAnswerError,
    EndpointError,
    PredictionCountError,
    RetryConfig,
    predict,
)
from headrace.core.event_loop import result_of
from headrace.failures.replies import retry_after
from headrace.handlers.kserve_inference import KServeModelHandler
from headrace.handlers.prompts import InvalidAnswerError
from headrace.testing import HandlerContract, nearly_equal
from http_endpoint import Answer, events_and_outcomes, failures_among
from http_endpoint import serving as serving_http
from openai_endpoint import self_signed
from toys import inferences

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end")

ROWS = [numpy.array([n, 2.5, 1], dtype=numpy.float32) for n in range(5)]


def asking(server, model="total", **options):
    return KServeModelHandler(**{"url": server.url, "model_name": model, "protocol": server.protocol, **options})


def together(count, **options):
    """All examples in one batch."""
    return {"min_batch_size": count, "max_batch_size": count, **options}


@pytest.fixture(params=["http", "grpc"])
def server(request):
    with serving(request.param) as server:
        yield server


@pytest.fixture
def http_server():
    with serving("http") as server:
        yield server


@pytest.mark.usefixtures("server")
class TestOnArrays(HandlerContract):
    examples = ROWS
    bad_example = numpy.zeros(4, numpy.float32)
    odd_examples = [[1, 2, 3], ROWS[0].astype(float), numpy.array([[1, 2, 3]]), "text", None, [None] * 3, [1e300] * 3]

    def handler(self, server):
        return asking(server, num_retries=0)


def test_examples_are_one_request_and_come_back_with_their_parts(server):
    results = list(predict(asking(server, **together(5)), ROWS))
    assert inferences(results) == [n + 3.5 for n in range(5)]
    assert all(result.example is row for result, row in zip(results, ROWS, strict=True))
    assert {result.model_id for result in results} == {"total"}
    assert server.requests == [{"x": (5, 3)}]


def test_time_of_a_large_batch_grows_with_its_examples_only(http_server):
    began = time.process_time()
    assert len(list(predict(asking(http_server, **together(50_000)), [ROWS[0]] * 50_000))) == 50_000
    assert time.process_time() - began < 5


def test_several_inputs_and_outputs_are_dicts_and_numbers_of_any_type_share_a_request(server):
    examples = [*({"a": n, "b": numpy.int32(10)} for n in range(3)), {"a": 3.0, "b": 10}]
    found = inferences(predict(asking(server, "mixed", **together(4)), examples))
    assert found == [{"sum": n + 10, "first": n} for n in range(4)]
    assert server.requests == [{"a": (4,), "b": (4,)}]


@pytest.mark.parametrize(("protocol", "typed"), [("http", False), ("grpc", False), ("grpc", True)])
def test_every_datatype_goes_there_and_back(protocol, typed):
    """Of servers that answer with tensors as they are in memory, and with numbers."""
    with serving(protocol, typed=typed) as server:
        for datatype in sorted(DTYPES.keys() - ({"FP16"} if typed else set())):
            (found,) = inferences(predict(asking(server, f"same-{datatype}"), [numpy.array([0, 1], DTYPES[datatype])]))
            assert (found.tolist(), found.dtype) == ([0, 1], DTYPES[datatype])
        (found,) = inferences(predict(asking(server, "same-BYTES"), [["a", "b"]]))
        assert found.tolist() == ["a", "b"]


@pytest.mark.parametrize("binary", [True, False])
def test_texts_are_bytes_on_their_way(server, binary):
    server.binary = binary
    for text_outputs, expected in ((True, "ÄB"), (False, "ÄB".encode())):
        handler = asking(server, "shout", text_outputs=text_outputs, **together(3))
        found = inferences(predict(handler, ["äb", numpy.array(["äb"]), numpy.array(["äb".encode()], object)]))
        assert [one.tolist() for one in found] == [[expected]] * 3


@pytest.mark.parametrize("kind", [bytes, bytes.decode])
def test_texts_and_bytes_may_end_with_zeros(server, kind):
    first, second = kind(b"a\0"), kind(b"\0\0")
    handler = asking(server, "unsaid", text_outputs=kind is not bytes, **together(2))
    assert inferences(predict(handler, [first, second])) == [first, second]
    assert inferences(predict(handler, [[first, second], [second, first]]))[0].tolist() == [first, second]


def test_bytes_that_are_no_text_are_a_dead_letter_unless_bytes_are_asked_for(server):
    examples = [numpy.array([b"\xff", b""], object)]
    (failure,) = predict(asking(server, "same-BYTES"), examples, on_failure="yield")
    (result,) = predict(asking(server, "same-BYTES", text_outputs=False), examples)
    assert "use text_outputs=False" in str(failure.error)
    assert result.inference.tolist() == [b"\xff", b""]


def test_examples_of_several_shapes_are_a_request_each(server):
    examples = [numpy.zeros(2), numpy.ones(3), numpy.zeros(2), numpy.float32(1)]
    found = inferences(predict(asking(server, "unsaid", **together(4)), examples))
    assert [one.shape for one in found] == [(2,), (3,), (2,), ()]
    assert sorted(shapes["input-0"] for shapes in server.requests) == [(1,), (1, 3), (2, 2)]


MISFITS = [
    ("total", [1.0, 2.0], "input 'x' takes an example of shape [3], not [2]"),
    ("total", ["a", "b", "c"], "input 'x' is FP32, not object"),
    ("total", [1e300, 0, 0], "float32, which cannot hold"),
    ("total", {"y": [1, 2, 3]}, "the model takes x (FP32 [-1, 3]); the example has y"),
    ("mixed", [1], "an example must be a dict with these names"),
    ("mixed", {"a": 1}, "the model takes a (INT64 [-1]), b (INT64 [-1]); the example has a"),
    ("mixed", {"a": 1.5, "b": 1}, "int64, which cannot hold"),
    ("shout", [3], "input 'text' is BYTES, not int64"),
    ("unsaid", numpy.array(["2020"], "datetime64[D]"), "is of datetime64[D], which the protocol does not have"),
    ("unsaid", [object()], "tensors hold numbers, texts or bytes"),
]


def test_example_that_does_not_fit_fails_alone(server):
    fits = {"total": ROWS[0], "mixed": {"a": 1, "b": 2}, "shout": ["a"], "unsaid": [1.0]}
    for model, example, said in MISFITS:
        batch = [fits[model], example, fits[model]]
        first, failure, last = predict(asking(server, model, **together(3)), batch, on_failure="yield")
        assert said in str(failure.error)
        assert nearly_equal(first.inference, last.inference)


@pytest.mark.parametrize(
    ("model", "batched", "shape", "expected"),
    [("single", True, (1, 3), lambda row: row.sum()), ("unbatched", False, (3,), lambda row: (2 * row).tolist())],
)
def test_models_of_one_example_are_asked_one_by_one(server, model, batched, shape, expected):
    found = inferences(predict(asking(server, model, batched=batched, **together(5)), ROWS))
    assert [one.tolist() for one in found] == [expected(row) for row in ROWS]
    assert server.requests == [{"x": shape}] * 5


@pytest.mark.parametrize(
    ("model", "said"),
    [("short", r"output 'y' of the model has the shape \[1, 3\] for 5 example"), ("silent", "without outputs")],
)
def test_wrong_count_is_an_error(server, model, said):
    with pytest.raises(PredictionCountError, match=said):
        list(predict(asking(server, model, **together(5)), ROWS))
    assert len(server.requests) == 1


def test_unknown_model_is_one_error(server):
    with pytest.raises(EndpointError, match=r"no model 'nobody'.*unknown model"):
        list(predict(asking(server, "nobody"), ROWS))


def test_refused_requests_are_sent_again(server):
    for refusal in (Refusal(429, "RESOURCE_EXHAUSTED"), Refusal(503, "UNAVAILABLE"), Refusal(500, "INTERNAL")):
        refusals = [refusal, refusal]
        server.fault = lambda *_, refusals=refusals: refusals.pop() if refusals else None
        assert inferences(predict(asking(server), ROWS[:1])) == [3.5]
    assert len(server.requests) == 9


def test_some_requests_of_a_batch_may_fail(server):
    refuse = {(2, 2): Refusal(400, "INVALID_ARGUMENT"), (1, 3): Refusal(503, "UNAVAILABLE")}
    server.fault = lambda model, shapes, before: refuse.pop(shapes["predict"], None)
    handler = asking(server, "unsaid", input_name="predict", **together(4))
    found = list(predict(handler, [[1, 2], [1, 2, 3], [1, 2], [1]], on_failure="yield"))
    assert [one.inference.tolist() for one in (found[1], found[3])] == [[1, 2, 3], [1]]
    assert {type(one.error) for one in failures_among(found)} == {EndpointAnswerError}


def test_retry_after_is_on_the_error():
    with serving(fault=lambda model, shapes, before: Refusal(429, headers={"Retry-After": "77"})) as server:
        handler = asking(server, num_retries=0)
        client = handler.create_client()
        with pytest.raises(EndpointAnswerError, match="status 429") as caught:
            handler.run_inference(ROWS, client)
        result_of(client.aclose())
    assert (retry_after(caught.value), caught.value.status_code) == (77, 429)


def test_key_is_a_bearer_token_and_in_nothing_that_others_read(server, monkeypatch):
    monkeypatch.setenv("KSERVE_API_KEY", "key-0123456789")
    handler = asking(server, headers={"x-tenant": "a"})
    list(predict(handler, ROWS[:1]))
    assert server.headers[0]["authorization"] == "Bearer key-0123456789"
    assert server.headers[0]["x-tenant"] == "a"
    assert b"key-0123456789" not in pickle.dumps(handler)


def test_inference_args_are_parameters(server):
    list(predict(asking(server), ROWS[:1], inference_args={"top_k": 3, "exact": True}))
    assert server.parameters == [{"top_k": 3, "exact": True}]
    with pytest.raises(ConfigurationError, match="'top_k' must be a number, a text or a boolean"):
        list(predict(asking(server), ROWS, inference_args={"top_k": [3]}))


def test_wrong_arguments_are_refused():
    for said, arguments in {
        "protocol must be 'http' or 'grpc', not 'rest'": {"protocol": "rest"},
        "url must be that of the server, such as 'http://localhost:8000', not 'ftp://x'": {"url": "ftp://x"},
        "such as 'localhost:8001'": {"url": "http://h/x", "protocol": "grpc"},
        "not None": {"url": None},
        "not 'http://'": {"url": "http://"},
        "model_name must name a model": {"model_name": ""},
        "timeout_secs must be positive": {"timeout_secs": 0},
        "outputs must be a list": {"outputs": "y"},
        "max_batch_size": {"max_batchsize": 1},
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            KServeModelHandler(**{"url": "localhost:8000", "model_name": "m", **arguments})


def test_version_and_path_are_part_of_the_address():
    with serving() as server:
        handler = asking(server, url=f"{server.url}/v2/", model_version=3)
        (result,) = predict(handler, ROWS[:1])
    assert result.model_id == "total/3"


@pytest.mark.parametrize(
    ("columns_are_inputs", "model", "row", "expected"),
    [(False, "total", {"a": "1", "b": 2.5, "c": 3}, 6.5), (True, "mixed", {"a": 1, "b": 2}, {"sum": 3, "first": 1})],
)
def test_rows_of_files_are_examples(server, columns_are_inputs, model, row, expected):
    handler = asking(server, model, columns_are_inputs=columns_are_inputs)
    assert inferences(predict(handler, [handler.example_from_row(row)])) == [expected]


def test_request_that_takes_too_long_fails_and_is_sent_again(server):
    hanging = threading.Event()
    server.fault = lambda model, shapes, before: None if before else hanging.wait(60) and None
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


@pytest.mark.parametrize("protocol", ["http", "grpc"])
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


def test_outputs_are_those_that_the_user_names(server):
    pairs = [{"a": 1, "b": 2}]
    _, (failure,) = events_and_outcomes(asking(server, "mixed", outputs=["sum", "other"]), pairs)
    assert len(server.requests) == 1
    assert str(failure.error) == "the model answered without the output 'other'; it has 'sum'."
    assert inferences(predict(asking(server, "mixed", outputs=["first"]), pairs)) == [1]


def test_certificate_that_is_not_trusted_is_one_error(tmp_path):
    untrusted = pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED")
    with serving_http(lambda asked, before: Answer(), tls=self_signed(tmp_path)) as server, untrusted:
        list(predict(KServeModelHandler(server.url, "total"), ROWS))


def test_page_of_a_web_site_is_no_model():
    no_model = pytest.raises(EndpointError, match="no model 'total': status 404: <html>Not here")
    with serving_http(lambda asked, before: Answer(404, b"<html>Not here</html>")) as server, no_model:
        list(predict(KServeModelHandler(server.url, "total"), ROWS))


def test_large_answers_are_read(server):
    """More than the 4 MB that gRPC allows unless told otherwise."""
    (found,) = inferences(predict(asking(server, "unsaid"), [numpy.zeros(1_000_000)]))
    assert found.nbytes == 8_000_000
