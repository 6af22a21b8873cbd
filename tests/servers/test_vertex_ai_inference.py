"""Google's client asks a server on localhost that speaks the REST of Vertex AI."""

from __future__ import annotations

import json
import pickle

import google.auth.credentials
import pytest
import requests
from google.api_core.exceptions import TooManyRequests
from google.cloud import aiplatform

from headrace import ConfigurationError, EndpointAnswerError, EndpointError, PredictionResult, predict
from headrace.core.declared_type import declared_prediction_type
from headrace.core.events import UsageReported
from headrace.failures.replies import retry_after
from headrace.handlers.kserve_inference import KServeModelHandler
from headrace.handlers.vertex_ai_inference import VertexAIModelHandlerJSON
from headrace.testing import HandlerContract
from http_endpoint import Answer, events_and_outcomes, failures_among, serving

pytestmark = [
    pytest.mark.usefixtures("module_travels", "requests_end"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Google's packages use what others of them deprecate
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

NAME = "projects/p/locations/us-central1/endpoints/7"
ENDPOINT = {"name": NAME, "displayName": "seven", "deployedModels": [{"id": "55", "model": "projects/p/models/3"}]}
THREE = [{"n": n} for n in range(3)]


def predicting(fault=lambda asked, before: None, endpoint=ENDPOINT):
    """How such a server answers: its model doubles numbers."""

    def answer(asked, before):
        if asked is None:  # a GET
            return endpoint if isinstance(endpoint, Answer) else Answer(body=endpoint)
        doubled = [2 * one["n"] for one in asked["instances"]]
        return fault(asked, before) or Answer(body={"predictions": doubled, "deployedModelId": "55"})

    return answer


@pytest.fixture(autouse=True)
def _settings_of_the_process():
    yield
    aiplatform.initializer.global_config.__init__()


@pytest.fixture
def server():
    with serving(predicting()) as server:
        yield server


def asking(server, **options):
    place = {"endpoint_id": "7", "project": "p", "location": "us-central1"}
    rest = {"api_endpoint": server.url.rstrip("/"), "api_transport": "rest"}
    credentials = google.auth.credentials.AnonymousCredentials
    return VertexAIModelHandlerJSON(**{**place, **rest, "credentials": credentials, **options})


def asked_of(server):
    return [asked for asked in server.requests if asked is not None]


def together(**options):
    return {"min_batch_size": 3, "max_batch_size": 3, **options}


class TestVertexAI(HandlerContract):
    test_a_bad_example_fails_alone = None  # a request has one status, and is billed
    examples = [{"n": n} for n in range(5)]

    def handler(self, server):
        return asking(server, num_retries=0)


def test_batch_is_a_request_and_each_example_has_its_prediction(server):
    pickled = pickle.dumps(asking(server, **together()))
    aiplatform.initializer.global_config.__init__()  # a worker has nothing that the constructor leaves in its process
    results = list(predict(pickle.loads(pickled), THREE, inference_args={"top": 1}))
    assert results == [PredictionResult(example, 2 * example["n"], "55") for example in THREE]
    assert asked_of(server) == [{"instances": THREE, "parameters": {"top": 1}}]
    assert server.paths[-1] == f"/v1/{NAME}:predict?%24alt=json%3Benum-encoding%3Dint"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_refused_requests_are_sent_again(status):
    refusals = [Answer(status, {})] * 2
    with serving(predicting(lambda asked, before: refusals.pop() if refusals else None)) as server:
        assert [one.inference for one in predict(asking(server), THREE[:1])] == [0]
        assert len(asked_of(server)) == 3


def test_retry_after_is_on_the_error():
    with serving(predicting(lambda asked, before: Answer(429, {}, {"Retry-After": "77"}))) as server:
        handler = asking(server)
        with pytest.raises(TooManyRequests) as caught:
            handler.request(THREE, handler.create_client())
    assert retry_after(caught.value) == 77


def test_what_concerns_every_request_costs_one():
    with serving(predicting(lambda asked, before: Answer(403, {"error": {"message": "not yours"}}))) as server:
        with pytest.raises(EndpointError, match="not yours"):
            list(predict(asking(server, max_batch_size=1), THREE))
        assert len(asked_of(server)) == 1


def test_endpoint_is_looked_at_where_the_handler_is_made():
    away = Answer(404, {"error": {"message": "no such endpoint"}})
    for endpoint, said in (
        ({**ENDPOINT, "deployedModels": []}, "endpoint 7 has no model deployed to it"),
        (away, "endpoint 7 cannot be asked for its models: 404"),
    ):
        with serving(predicting(endpoint=endpoint)) as server, pytest.raises(ConfigurationError, match=said):
            asking(server)


def test_wrong_arguments_are_refused(server):
    for said, arguments in {
        "a private endpoint needs network=": {"private": True},
        "timeout_secs must be over 0 and at most 120": {"timeout_secs": 0},
        "max_batch_size": {"max_batchsize": 1},
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            asking(server, **arguments)


class Invoked:
    """An endpoint whose client answers as Google's does, which raises for no status."""

    def __init__(self, status, content, headers=None):
        self.answer = requests.Response()
        self.answer.status_code, self.answer._content = status, content
        self.answer.headers.update(headers or {})

    def invoke(self, request_path, body, headers, timeout):
        self.asked = request_path, json.loads(body), headers
        return self.answer


def invoked(server, batch, *answer, **options):
    endpoint = Invoked(*answer)
    return list(asking(server, invoke_route="/mine", **options).request(batch, endpoint, {"k": 1})), endpoint.asked


def test_route_of_the_models_own_is_asked(server):
    found, asked = invoked(server, THREE[:2], 200, b'{"predictions": [1, 2], "deployedModelId": "d"}')
    assert found == [PredictionResult(THREE[0], 1, "d"), PredictionResult(THREE[1], 2, "d")]
    assert asked == ("/mine", {"instances": THREE[:2], "parameters": {"k": 1}}, {"Content-Type": "application/json"})


def test_answers_of_a_route_are_read_as_with_beam(server):
    for content, batch, inferences in (
        (b"[1, 2]", THREE[:2], [1, 2]),
        (b"[1]", THREE[:1], [1]),
        (b"[1, 2, 3]", THREE[:1], [[1, 2, 3]]),
        (b'{"text": "x"}', THREE[:2], [{"text": "x"}] * 2),
        (b"no json", THREE[:1], [b"no json"]),
        (b"[" * 5000, THREE[:1], [b"[" * 5000]),
    ):
        found, _ = invoked(server, batch, 200, content)
        assert [one.inference for one in found] == inferences


def test_status_of_a_route_is_an_error_and_no_prediction(server):
    with pytest.raises(EndpointAnswerError, match="endpoint 7 answered with status 429: busy") as caught:
        invoked(server, THREE[:1], 429, b"busy", {"Retry-After": "3"})
    assert (caught.value.status_code, caught.value.headers["Retry-After"]) == (429, "3")


def test_tokens_of_a_route_are_reported(server, monkeypatch):
    content = b'{"model": "llama", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    monkeypatch.setattr(aiplatform.Endpoint, "invoke", Invoked(200, content).invoke)
    events, _ = events_and_outcomes(asking(server, invoke_route="/v1/chat"), THREE[:1])
    (used,) = events.of(UsageReported)
    assert (used.model, used.input_tokens, used.output_tokens) == ("llama", 3, 4)


UNREADABLE = [{}, {"predictions": None}, {"predictions": 7}, b"{", b"[1]", b"null", b"[" * 5000]


@pytest.mark.parametrize("body", [*UNREADABLE, *({"predictions": [0] * count} for count in (2, 4))])
def test_answer_that_cannot_be_used_is_paid_for_once(body):
    with serving(predicting(lambda asked, before: Answer(body=body))) as server:
        _, outcomes = events_and_outcomes(asking(server, **together()), THREE)
        assert len(asked_of(server)) == 1
    assert len(failures_among(outcomes)) == 3


def test_status_in_the_text_of_a_dedicated_endpoints_error_is_found(server):
    class Dedicated:
        def predict(self, **_):
            raise ValueError("Failed to make prediction request. Status code:429, response: busy.")

    with pytest.raises(EndpointAnswerError, match="busy") as caught:
        asking(server).request(THREE, Dedicated())
    assert caught.value.status_code == 429


def test_handlers_of_servers_declare_results():
    for kind in (KServeModelHandler, VertexAIModelHandlerJSON):
        assert declared_prediction_type(object.__new__(kind)) is PredictionResult
