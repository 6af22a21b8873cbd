"""OpenAI's client asks a server on localhost that speaks its API, or is slow, away or broken."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import EndpointError, RetryConfig, predict
from headrace.core.events import BatchRetried
from headrace.core.request_context import also_report_to
from headrace.handlers.openai_inference import (
    OpenAIChatModelHandler,
    OpenAICompletionsModelHandler,
    OpenAIEmbeddingsModelHandler,
)
from http_endpoint import KEY, Answer, events_and_outcomes, failures_among, serving
from leap import LIMIT_SECS, leap
from openai_endpoint import completion, prompts_of, refusing, self_signed, speaking, vector_of
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end", "_keys_in_the_environment")

ALL = [OpenAIChatModelHandler, OpenAICompletionsModelHandler, OpenAIEmbeddingsModelHandler]


@pytest.fixture
def server():
    with serving(speaking()) as server:
        yield server


def at(server):
    return f"{server.url}v1"


def test_embeddings_fill_their_requests(server):
    texts = [str(n) for n in range(130)]
    results = list(predict(OpenAIEmbeddingsModelHandler("m", url=at(server)), texts))
    assert [result.inference for result in results] == [vector_of(text) for text in texts]
    assert sorted(len(asked["input"]) for asked in server.requests) == [2, 64, 64]


@pytest.mark.parametrize("kind", ALL[:2])
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


@pytest.mark.parametrize("kind", ALL[:2])
def test_inference_args_are_those_of_the_client(kind, server):
    list(predict(kind("m", url=at(server)), ["a"], inference_args={"max_tokens": 5, "extra_body": {"top_k": 3}}))
    assert (server.requests[0]["max_tokens"], server.requests[0]["top_k"]) == (5, 3)


@pytest.mark.parametrize("body", [{"detail": "no such field"}, b"no such field"])
def test_errors_that_other_servers_word_in_their_own_way_say_why(body):
    refusing = serving(lambda asked, before: Answer(422, body))
    with refusing as server, pytest.raises(EndpointError, match="no such field"):
        list(predict(OpenAIChatModelHandler("m", url=at(server)), ["a"]))


@pytest.mark.parametrize("kind", ALL)
def test_page_of_a_web_site_is_one_error(kind):
    page = Answer(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"})
    with serving(lambda asked, before: page) as server, pytest.raises(EndpointError, match=r"Welcome.*such as /v1"):
        list(predict(kind("m", url=server.url), ["a", "b"], on_failure="yield"))


def test_refusal_of_the_model_is_a_dead_letter_with_its_words():
    with serving(lambda asked, before: completion(None, refusal="I'd rather not.")) as server:
        (failure,) = predict(OpenAIChatModelHandler("m", url=at(server)), ["a"], on_failure="yield")
    assert str(failure.error) == "the model refused: I'd rather not."


def test_url_may_be_that_of_the_requests_and_a_server_of_the_users_own_needs_no_key(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    handler = OpenAIChatModelHandler("m", url=f"{at(server)}/chat/completions")
    assert [one.inference for one in predict(handler, ["a"])] == ["A"]
    assert server.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize("kind", ALL)
def test_headers_about_rate_limits_are_reported(kind):
    found = []

    async def ask(handler):
        also_report_to(lambda _: None, found.extend)
        async with handler.create_client() as client:
            await handler.request(["a"], client)

    said = {"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "1s"}
    with serving(lambda asked, before: speaking()(asked, before)._replace(headers=said)) as server:
        asyncio.run(ask(kind("m", url=at(server))))
    assert [allowance.remaining for allowance in found] == [7]


def test_quota_is_that_of_the_url_and_the_model(monkeypatch):
    for options in ({"url": "http://x/v1", "prompt": "{a}"}, {"url": "http://x/v1/"}):
        assert OpenAIChatModelHandler("m", **options).quota_name() == "http://x/v1 m"
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


def once(answer):
    return speaking(fault=lambda asked, before: None if before else answer)


def texts_of(outcomes):
    return sorted(getattr(one, "inference", one) for one in outcomes)


def asking(url, examples, **options):
    return events_and_outcomes(OpenAIChatModelHandler("m", url=f"{url}v1", num_retries=2), examples, **options)


PASSING = {
    "429-after": refusing(429, headers={"Retry-After": "0.05"}),
    "429-after-ms": refusing(429, headers={"retry-after-ms": "50"}),
    **{str(status): refusing(status) for status in (429, 500, 503, 529)},
    "503-html": Answer(503, b"<html>Bad gateway</html>", {"Content-Type": "text/html"}),
    "cut": Answer(cut=True),
    "cut-body": completion("a")._replace(cut_body=True),
}


@pytest.mark.parametrize("fault", PASSING)
def test_fault_that_passes_costs_a_retry_and_no_element(fault):
    with serving(once(PASSING[fault])) as server:
        events, outcomes = asking(server.url, ["a", "b", "c"])
        assert len(server.requests) == 4
    assert texts_of(outcomes) == ["A", "B", "C"]
    assert len(events.of(BatchRetried)) == 1


@pytest.mark.parametrize("slow", [Answer(delay=60), completion("b")._replace(pause=60)], ids=["first-byte", "body"])
def test_answer_that_is_too_slow_costs_its_element(slow):
    with serving(speaking(fault=lambda asked, before: slow if prompts_of(asked) == ["b"] else None)) as server:
        handler = OpenAIChatModelHandler("m", url=f"{server.url}v1")
        outcomes = predict(handler, ["a", "c", "b"], timeout=LIMIT_SECS, on_failure="yield", ordered=False)
        assert texts_of([next(outcomes), next(outcomes)]) == ["A", "C"]
        assert wait_until(lambda: len(server.requests) == 3)
        leap()
        (failure,) = outcomes
    assert failure.element == "b"
    assert isinstance(failure.error, TimeoutError)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_server_that_was_never_there_is_one_error(host, nobody):
    with pytest.raises(EndpointError, match=r"nobody has answered for 0\.2 s: .*Check the URL"):
        asking(nobody.replace("127.0.0.1", host), ["a", "b"], retry=RetryConfig(timeout_secs=0.2))


def test_server_that_comes_late_is_waited_for_by_a_name_of_several_addresses(closed_port):
    handler = OpenAIChatModelHandler("m", url=f"http://localhost:{closed_port}/v1", num_retries=0)
    with ThreadPoolExecutor(1) as one:
        found = one.submit(list, predict(handler, ["a", "b"]))
        with serving(speaking(), address=("127.0.0.1", closed_port)):
            assert texts_of(found.result(60)) == ["A", "B"]


def test_certificate_that_nobody_trusts_is_one_error(tmp_path):
    with serving(speaking(), tls=self_signed(tmp_path)) as server:
        with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
            list(predict(OpenAIChatModelHandler("m", url=f"{server.url}v1"), ["a"] * 9, on_failure="yield"))
        assert server.requests == []
