"""Google's client asks a server on localhost that speaks Gemini's API."""

from __future__ import annotations

import pickle

import google.auth.credentials
import pytest
from google.genai.types import HttpOptions

from gemini_endpoint import blocked, busy, candidate, prompt_of, refusing, response, speaking, wrong_key
from headrace import ConfigurationError, EndpointError, PredictionCountError, RetryConfig, predict
from headrace.core.events import UsageReported
from headrace.failures.replies import retry_after
from headrace.handlers.gemini_inference import GeminiModelHandler, generate_from_string
from headrace.handlers.prompts import InvalidAnswerError
from http_endpoint import KEY, Answer, events_and_outcomes, serving

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end", "_keys_in_the_environment")

THREE = ["a", "b", "c"]


@pytest.fixture
def server():
    with serving(speaking()) as server:
        yield server


def asking(server, **options):
    return GeminiModelHandler(**{"model_name": "m", "url": server.url, **options})


def texts(results):
    return [result.inference.text for result in results]


async def ask_alone(model_name, batch, client, inference_args):
    return await client.aio.models.generate_content(model=model_name, contents=batch[0], **inference_args)


def ask_blocking(model_name, batch, client, inference_args):
    return [client.models.generate_content(model=model_name, contents=one, **inference_args) for one in batch]


def ask_once(model_name, batch, client, inference_args):
    return generate_from_string(model_name, batch, client, inference_args)


def test_arguments_of_a_request_reach_the_server(server):
    list(predict(asking(server), ["a"], inference_args={"config": {"max_output_tokens": 5}}))
    assert server.requests[0]["generationConfig"] == {"maxOutputTokens": 5}
    (path,) = server.paths  # whose version is another in each major version of Google's client
    assert path.endswith("/models/m:generateContent")


@pytest.mark.parametrize("args", [{"temperature": 0}, {"config": {"temprature": 0}}])
def test_arguments_that_no_request_has_are_refused_before_one_is_sent(server, args):
    with pytest.raises(ConfigurationError, match="inference_args do not fit generate_content"):
        predict(asking(server), ["a"], inference_args=args)
    assert not server.requests


@pytest.mark.parametrize("fn", [ask_alone, ask_once])
def test_functions_of_the_users_are_given_one_prompt_at_a_time(server, fn):
    assert texts(predict(asking(server, request_fn=fn), THREE)) == ["A", "B", "C"]
    assert len(server.requests) == 3


def test_function_whose_batches_are_larger_returns_a_list(server):
    together = {"min_batch_size": 3, "max_batch_size": 3}
    assert texts(predict(asking(server, request_fn=ask_blocking, **together), THREE)) == ["A", "B", "C"]
    with pytest.raises(PredictionCountError, match="request_fn was given 3 examples and returned a google"):
        list(predict(asking(server, request_fn=ask_once, **together), THREE))
    assert len(server.requests) == 4


def test_what_else_a_function_returns_for_one_prompt_is_its_prediction(server):
    handler = asking(server, request_fn=lambda model, batch, client, args: [batch, args])
    assert [one.inference for one in predict(handler, ["a"], inference_args={"n": 1})] == [[["a"], {"n": 1}]]


WITHOUT_CONTENT = [
    (blocked("SAFETY"), "Gemini blocked the prompt: SAFETY"),
    (blocked("OTHER", blockReasonMessage="why not"), "Gemini blocked the prompt: OTHER (why not)"),
    (response(candidate(finish="RECITATION")), "Gemini answered without content: RECITATION"),
    (response(candidate(finish="MAX_TOKENS")), "without content: MAX_TOKENS; raise max_output_tokens"),
    (response({"content": {"role": "model"}, "finishReason": "STOP"}), "without content: STOP"),
    (response(), "Gemini answered without content: it gave no reason"),
    (Answer(body={}), "Gemini answered without content: it gave no reason"),
]


@pytest.mark.parametrize("size", [1, 9])
def test_answer_without_content_is_its_prompts_dead_letter(size):
    answers = {str(n): answer for n, (answer, _) in enumerate(WITHOUT_CONTENT)}
    with serving(speaking(fault=lambda asked, before: answers.get(prompt_of(asked)))) as server:
        handler = asking(server, min_batch_size=size, max_batch_size=size)
        first, *failures, last = predict(handler, ["a", *answers, "c"], on_failure="yield")
    assert texts([first, last]) == ["A", "C"]
    assert {type(failure.error) for failure in failures} == {InvalidAnswerError}
    assert all(said in str(one.error) for (_, said), one in zip(WITHOUT_CONTENT, failures, strict=True))


def test_answer_without_text_is_a_dead_letter_if_texts_are_asked_for():
    call = {"content": {"parts": [{"functionCall": {"name": "f", "args": {}}}]}}
    with serving(lambda asked, before: response(call)) as server:
        (failure,) = predict(asking(server, full_answer=False), ["a"], on_failure="yield")
        assert len(list(predict(asking(server), ["a"]))) == 1
    assert "the answer has no text" in str(failure.error)


def test_tokens_are_reported_for_blocked_prompts_too():
    with serving(speaking(fault=lambda asked, before: blocked() if prompt_of(asked) == "b" else None)) as server:
        events, _ = events_and_outcomes(asking(server), THREE)
    assert sorted((one.input_tokens, one.output_tokens) for one in events.of(UsageReported)) == [(7, 0), (8, 8), (8, 8)]


def test_what_concerns_every_request_is_one_error():
    refusals = (refusing(*one) for one in ((403, "DENIED"), (400, "FAILED_PRECONDITION"), (400, "INVALID")))
    for answer in (wrong_key(), *refusals):
        with serving(lambda asked, before, answer=answer: answer) as server:
            with pytest.raises(EndpointError, match="refused: "):
                list(predict(asking(server), THREE))
            assert list(map(prompt_of, server.requests)) == ["a", "Hi"]


@pytest.mark.parametrize("fn", [generate_from_string, ask_alone, ask_once])
def test_refused_requests_are_sent_again(fn):
    cut_off = response(candidate("A"))._replace(cut_body=True)
    for answer in (busy("0s"), refusing(503, "UNAVAILABLE"), Answer(cut=True), cut_off):
        with serving(speaking(fault=lambda asked, before, answer=answer: answer if before < 2 else None)) as server:
            assert texts(predict(asking(server, request_fn=fn), ["a"])) == ["A"]
            assert len(server.requests) == 3


def test_delay_that_google_names_is_on_the_error_and_the_key_is_not():
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}
    with serving(lambda asked, before: refusing(429, KEY, delay)) as server:
        retry = RetryConfig(timeout_secs=0.1, max_retry_after_secs=1)
        (failure,) = events_and_outcomes(asking(server), ["a"], retry=retry)[1]
    assert retry_after(failure.error) == 1.5
    assert "refused: ***" in str(failure.error)
    assert KEY.encode() not in pickle.dumps(failure.error)


class Token(google.auth.credentials.Credentials):
    """Credentials that need no server."""

    def __init__(self):
        super().__init__()
        self.token = "ya29.token"

    def refresh(self, request):
        raise AssertionError


@pytest.mark.parametrize("flex", [False, True])
@pytest.mark.parametrize("fn", [generate_from_string, ask_once])
def test_vertex_ai_is_asked_with_googles_credentials(server, flex, fn):
    place = {"project": "p", "location": "us-central1", "credentials": Token, "use_vertex_flex_api": flex}
    assert texts(predict(asking(server, request_fn=fn, **place), THREE)) == ["A", "B", "C"]
    ((version, path),) = {tuple(path.strip("/").split("/", 1)) for path in server.paths}
    assert path == "projects/p/locations/us-central1/publishers/google/models/m:generateContent"
    assert version == "v1" or not flex
    headers = {name.lower(): value for name, value in server.headers[0].items()}
    assert headers["authorization"] == "Bearer ya29.token"
    assert (headers.get("x-vertex-ai-llm-request-type") == "flex") is flex


def test_quota_is_that_of_the_project_on_vertex_ai():
    names = {
        GeminiModelHandler("m", project=project, location=place).quota_name() for project in "pq" for place in "kl"
    }
    assert len(names) == 4
    assert GeminiModelHandler("m").quota_name() not in names


def test_wrong_arguments_are_refused(monkeypatch):
    for said, arguments in {
        "give api_key for the Gemini API, or project and": {"api_key": str, "project": "p", "location": "l"},
        "for Vertex AI give project and location": {"project": "p"},
        "for Vertex AI give .* and location": {"location": "l"},
        "request_fn must be a function, not 'ask'": {"request_fn": "ask"},
        "http_options are not those of genai.Client": {"http_options": {"base": "x"}},
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            GeminiModelHandler("m", **arguments)
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(ConfigurationError, match="set GEMINI_API_KEY, also in the environment of the workers"):
        GeminiModelHandler("m")


def test_options_may_be_googles_own(server):
    handler = asking(server, url=None, http_options=HttpOptions(base_url=server.url))
    assert texts(predict(pickle.loads(pickle.dumps(handler)), ["a"])) == ["A"]
