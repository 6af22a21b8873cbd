"""OpenAI's client asks a server on localhost that speaks its API."""

from __future__ import annotations

import asyncio

import pytest

from headrace import EndpointError, predict
from headrace.core.request_context import also_report_to
from headrace.handlers.openai_inference import (
    OpenAIChatModelHandler,
    OpenAICompletionsModelHandler,
    OpenAIEmbeddingsModelHandler,
)
from http_endpoint import Answer, events_and_outcomes, failures_among, serving
from openai_endpoint import completion, prompts_of, refusing, speaking, vector_of

pytestmark = pytest.mark.usefixtures("module_travels")

KEY = "sk-of-the-environment"
ALL = pytest.mark.parametrize(
    "kind", [OpenAIChatModelHandler, OpenAICompletionsModelHandler, OpenAIEmbeddingsModelHandler]
)
TEXTUAL = pytest.mark.parametrize("kind", [OpenAIChatModelHandler, OpenAICompletionsModelHandler])


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def server():
    with serving(speaking()) as server:
        yield server


def at(server):
    return f"{server.url}v1"


def refuses(prompt, answer):
    """A fault: requests with this prompt get this answer."""
    return lambda asked, before: answer if prompt in prompts_of(asked) else None


def test_embeddings_fill_their_requests(server):
    texts = [str(n) for n in range(130)]
    results = list(predict(OpenAIEmbeddingsModelHandler("m", url=at(server)), texts))
    assert [result.inference for result in results] == [vector_of(text) for text in texts]
    assert sorted(len(asked["input"]) for asked in server.requests) == [2, 64, 64]


@TEXTUAL
def test_full_answers_are_those_of_the_client(kind, server):
    (result,) = predict(kind("m", url=at(server), full_answer=True), ["a"])
    assert result.inference.usage.prompt_tokens == 7


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"content": "A"}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "A"}, "finish_reason": "stop", "of this server": {}}], "usage": 7},
        {"choices": [{"message": {}, "finish_reason": "tool_calls"}]},
        {"choices": [{"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "A"}}]},
        {"choices": [{"message": {"content": [{"type": "text", "text": "A"}]}, "finish_reason": "stop"}]},
        {"choices": []},
        ["A"],
        b'{"choices": ',
    ],
)
def test_answers_are_read_alike_whether_the_clients_objects_are_wanted_or_not(body):
    with serving(lambda asked, before: Answer(body=body)) as server:
        handlers = [OpenAIChatModelHandler("m", url=at(server), full_answer=full) for full in (False, True)]
        short, full = (list(predict(handler, ["a"], on_failure="yield")) for handler in handlers)
    if failures := failures_among(full):
        assert [str(one.error) for one in failures] == [str(one.error) for one in failures_among(short)]
    else:
        content = None if failures_among(short) else short[0].inference
        assert content == full[0].inference.choices[0].message.content


@TEXTUAL
def test_inference_args_are_those_of_the_client(kind, server):
    list(predict(kind("m", url=at(server)), ["a"], inference_args={"max_tokens": 5, "extra_body": {"top_k": 3}}))
    assert (server.requests[0]["max_tokens"], server.requests[0]["top_k"]) == (5, 3)


@pytest.mark.parametrize("body", [{"detail": "no such field"}, b"no such field"])
def test_errors_that_other_servers_word_in_their_own_way_say_why(body):
    with (
        serving(lambda asked, before: Answer(422, body)) as server,
        pytest.raises(EndpointError, match="no such field"),
    ):
        list(predict(OpenAIChatModelHandler("m", url=at(server)), ["a"]))


@ALL
def test_page_of_a_web_site_is_one_error(kind):
    page = Answer(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"})
    with serving(lambda asked, before: page) as server, pytest.raises(EndpointError, match=r"Welcome.*such as /v1"):
        list(predict(kind("m", url=server.url), ["a", "b"], on_failure="yield"))


def test_refusal_of_the_model_is_a_dead_letter_with_its_words():
    said = completion(None, refusal="I'd rather not.")
    with serving(speaking(fault=refuses("a", said))) as server:
        _, outcomes = events_and_outcomes(OpenAIChatModelHandler("m", url=at(server)), ["a", "b"])
    (failure,) = failures_among(outcomes)
    assert str(failure.error) == "the model refused: I'd rather not."


def test_endpoint_that_wants_a_key_where_none_is_set_is_one_error_that_says_where_it_is_looked_for(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with serving(lambda asked, before: refusing(401, "Incorrect API key provided: none.")) as server:
        with pytest.raises(
            EndpointError, match=r"has no API key: set OPENAI_API_KEY .* wants one: .*Incorrect API key"
        ):
            list(predict(OpenAIChatModelHandler("m", url=at(server)), ["a", "b"], on_failure="yield"))
        assert len(server.requests) == 2


def test_url_may_be_that_of_the_requests_and_a_server_of_the_users_own_needs_no_key(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    handler = OpenAIChatModelHandler("m", url=f"{at(server)}/chat/completions")
    assert [one.inference for one in predict(handler, ["a"])] == ["A"]
    assert server.paths == ["/v1/chat/completions"]


@ALL
def test_headers_about_rate_limits_are_reported(kind):
    found = []

    async def ask(handler):
        also_report_to(lambda _: None, found.append)
        async with handler.create_client() as client:
            await handler.request(["a"], client)

    said = {"x-ratelimit-remaining-requests": "7"}
    with serving(lambda asked, before: speaking()(asked, before)._replace(headers=said)) as server:
        asyncio.run(ask(kind("m", url=at(server))))
    assert [headers["x-ratelimit-remaining-requests"] for headers in found] == ["7"]


def test_quota_is_that_of_the_url_and_the_model(monkeypatch):
    one, other = (
        OpenAIChatModelHandler("m", url="http://x/v1", prompt="{a}"),
        OpenAIChatModelHandler("m", url="http://x/v1/"),
    )
    assert one.quota_name() == other.quota_name() == "http://x/v1 m"
    assert OpenAIChatModelHandler("m", api_key=lambda: KEY).quota_name() is None
    assert OpenAIChatModelHandler("m").quota_name() == "OPENAI_BASE_URL m"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://y/v1")
    assert OpenAIChatModelHandler("m").quota_name() == "http://y/v1 m"


def test_what_a_cache_knows_is_not_asked_again(server, tmp_path, monkeypatch):
    def asked(prompt="a{n}", **options):
        before = len(server.requests)
        handler = OpenAIChatModelHandler("m", prompt=prompt, **options)
        found = [one.inference for one in predict(handler, [{"n": 1}, {"n": 2}], cache=tmp_path / "cache")]
        texts = [f"{prompt[0]}{n}".upper() for n in (1, 2)]
        assert found == texts or [one.choices[0].message.content for one in found] == texts
        return len(server.requests) - before

    monkeypatch.setenv("OPENAI_BASE_URL", at(server))
    assert [asked(), asked(), asked(api_key=lambda: KEY)] == [2, 0, 0]
    assert [asked(prompt="b{n}"), asked(full_answer=True), asked(full_answer=True)] == [2, 2, 0]
    assert asked(num_retries=3) == 0
    monkeypatch.setenv("OPENAI_BASE_URL", f"{at(server)}/")
    assert asked() == 2
