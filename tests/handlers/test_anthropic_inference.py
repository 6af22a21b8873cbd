"""Anthropic's client asks a server on localhost that speaks its API."""

from __future__ import annotations

import json
import pickle
import re
from functools import partial
from itertools import count

import pytest
from apache_beam.ml.inference import anthropic_inference as incumbent

from anthropic_endpoint import message, refusing, speaking
from beam_compat import assert_accepts
from headrace import ConfigurationError, predict
from headrace.core.events import UsageReported
from headrace.handlers.anthropic_inference import (
    AnthropicChatModelHandler,
    AnthropicModelHandler,
    message_from_conversation,
    message_from_string,
)
from http_endpoint import KEY, events_and_outcomes, failures_among, serving

pytestmark = pytest.mark.usefixtures(
    "module_travels", "requests_end", "_keys_in_the_environment", "_plain_clients_are_closed"
)

SCHEMA = {"type": "object", "properties": {"label": {"enum": ["good", "bad"]}}, "required": ["label"]}
GOOD = '{"label": "good"}'


@pytest.fixture
def server():
    with serving(speaking()) as server:
        yield server


def test_arguments_are_those_of_anthropics_api(server):
    handler = AnthropicChatModelHandler("some-model", url=server.url, system="be brief")
    list(predict(handler, ["a"], inference_args={"service_tier": "auto"}))
    (asked,) = server.requests
    expected = {"model": "some-model", "max_tokens": 1024, "system": "be brief", "service_tier": "auto"}
    assert {name: asked[name] for name in expected} == expected
    assert server.paths == ["/v1/messages"]


def test_answer_that_does_not_fit_its_schema_is_sent_back_once():
    with serving(speaking(lambda prompt: GOOD if "cannot be used" in prompt else "good")) as server:
        handler = AnthropicChatModelHandler("m", url=server.url, json_schema=SCHEMA)
        events, outcomes = events_and_outcomes(handler, ["a"])
        first, second = server.requests
    assert [one.inference for one in outcomes] == [{"label": "good"}]
    assert first["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert json.dumps(SCHEMA) in second["messages"][-1]["content"]
    assert len(events.of(UsageReported)) == 2


def test_answers_without_a_value_are_dead_letters(server):
    handler = AnthropicChatModelHandler("m", url=server.url, json_schema=SCHEMA)
    for said, answer in {
        "the model refused to answer": message(None, "refusal"),
        "it ended with 'tool_use'": message(None, "tool_use"),
        "the limit of tokens cut it off": message('{"lab', "max_tokens"),
    }.items():
        server.answer = lambda asked, before, answer=answer: answer
        (failure,) = predict(handler, ["a"], on_failure="yield")
        assert said in str(failure.error)
    assert len(server.requests) == 3


def test_beams_handler_gives_what_its_function_returns(server, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    handler = AnthropicModelHandler("m", message_from_string, system="be brief", output_config={"effort": "low"})
    events, outcomes = events_and_outcomes(handler, ["a", "b"], inference_args={"max_tokens": 5})
    assert sorted(one.inference.content[0].text for one in outcomes) == ["A", "B"]
    assert [one.model_id for one in outcomes] == ["m", "m"]
    assert {(asked["max_tokens"], asked["system"]) for asked in server.requests} == {(5, "be brief")}
    assert server.requests[0]["output_config"] == {"effort": "low"}
    assert events.of(UsageReported) == [UsageReported("m", 9, 3, cached_tokens=2)] * 2


def test_prompt_that_beams_handler_is_refused_fails_alone_and_without_the_key(server, monkeypatch):
    refusal = refusing(400, f"we got {KEY}")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    server.answer = speaking(fault=lambda asked, before: refusal if "bad" in str(asked) else None)
    good, bad = ([{"role": "user", "content": text}] for text in ("good", "bad"))
    handler = AnthropicModelHandler("m", message_from_conversation, min_batch_size=3, max_batch_size=3)
    _, outcomes = events_and_outcomes(handler, [good, bad, good])
    (failure,) = failures_among(outcomes)
    assert failure.element == bad
    assert len(server.requests) == 3
    assert "we got ***" in str(failure.error)
    assert KEY not in f"{failure} {failure.record} {failure.error!r} {failure.error.body}"
    assert KEY.encode() not in pickle.dumps(handler)


def test_key_of_a_function_may_expire(server, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setattr("headrace.core.secrets._KEPT_SECS", 0.0)
    for make in (AnthropicChatModelHandler, partial(AnthropicModelHandler, request_fn=message_from_string)):
        keys = (f"sk-number-{n}" for n in count())
        server.headers.clear()
        list(predict(make("m", api_key=lambda keys=keys: next(keys)), ["a", "b"]))
        first, second = (re.search(r"sk-number-\d+", str(headers))[0] for headers in server.headers)
        assert first != second


def test_arguments_are_those_of_beams_handler():
    assert_accepts(AnthropicModelHandler, incumbent.AnthropicModelHandler, "model_name", "request_fn")


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigurationError, match="request_fn must be a function, such as message_from_string"):
        AnthropicModelHandler("m", None)
    with pytest.raises(ConfigurationError, match="max_tokens must be an int, at least 1"):
        AnthropicChatModelHandler("m", max_tokens=0)
