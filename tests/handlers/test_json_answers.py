"""Answers that are to be JSON are read, validated, and sent back once if they are wrong."""

from __future__ import annotations

import json
import sys

import pytest

from headrace import Budget, ConfigurationError, MissingExtraError, Price, RowCostError, predict
from headrace.core.events import UsageReported
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from headrace.handlers.prompts import InvalidAnswerError, JsonSchema
from http_endpoint import events_and_outcomes, failures_among, serving
from openai_endpoint import completion, refusing, speaking

pytestmark = pytest.mark.usefixtures("requests_end", "_keys_in_the_environment")

SCHEMA = {"type": "object", "properties": {"label": {"enum": ["good", "bad"]}}, "required": ["label"]}
GOOD = '{"label": "good"}'


def handler_at(server, **options):
    return OpenAIChatModelHandler("m", url=f"{server.url}v1", json_schema=SCHEMA, **options)


def read(answer, schema=SCHEMA):
    return JsonSchema(schema, "H", "openai").read(answer)


def test_answer_that_fits_is_its_value_and_one_that_does_not_says_where():
    for answer in (GOOD, f" {GOOD}\n", f"```json\n{GOOD}\n```", f"```\n{GOOD}\n```\n"):
        assert read(answer) == {"label": "good"}
    for answer, said in {
        "good": "the answer is no JSON: Expecting value",
        "": "the answer is no JSON",
        '{"label": NaN}': "NaN is no value of JSON",
        '{"label": "fair"}': r"does not fit the schema: at \$.label, 'fair' is not one of",
        "{}": "does not fit the schema: at .*'label' is a required property",
        '{"label": "%s"}' % ("x" * 1000): r"x{200}$",
    }.items():
        with pytest.raises(InvalidAnswerError, match=said) as caught:
            read(answer)
        assert len(str(caught.value)) < 400


def test_schema_may_be_in_a_file_and_what_is_none_is_refused(tmp_path):
    (tmp_path / "label.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "broken.json").write_text("{")
    for path in (tmp_path / "label.json", str(tmp_path / "label.json")):
        assert read(GOOD, path) == {"label": "good"}
    for given, said in (
        ({"type": "objekt"}, "nor the path of a file with one: 'objekt'"),
        ([], "json_schema is no JSON schema, such as .*'list' object is not a mapping"),
        (tmp_path / "broken.json", "nor the path of a file with one: Expecting property name"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read(GOOD, given)


def test_missing_validator_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtraError, match=r"jsonschema is not installed; install the extra 'openai' with: pip"):
        OpenAIChatModelHandler("m", json_schema=SCHEMA)


def test_references_within_the_schema_are_followed_and_others_an_error_that_fetches_nothing():
    for schema in (
        {"$defs": {"label": {"enum": ["good"]}}, "properties": {"label": {"$ref": "#/$defs/label"}}},
        {"properties": {"$ref": {"type": "string"}}, "required": ["label"]},
    ):
        assert read(GOOD, schema) == {"label": "good"}
    with serving(lambda asked, before: completion("{}")) as server:
        for reference in ("#/$defs/nothing", f"{server.url}schema.json"):
            with pytest.raises(ConfigurationError, match=r"json_schema refers to .*which is not in it; put it under"):
                read("[1]", {"items": {"$ref": reference}})
        assert server.requests == []


def test_values_are_predictions_and_the_endpoint_is_told_the_schema_or_what_the_user_wants():
    with serving(speaking(lambda prompt: GOOD)) as server:
        for args in ({}, {"response_format": {"type": "json_object"}}):
            (found,) = predict(handler_at(server), ["a"], inference_args=args)
            assert found.inference == {"label": "good"}
        first, second = server.requests
    assert first["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert second["response_format"] == {"type": "json_object"}


def repaired(prompt):
    return GOOD if "cannot be used" in prompt else "the label is good"


def test_answer_that_does_not_fit_is_sent_back_with_the_reason():
    with serving(speaking(repaired)) as server:
        events, outcomes = events_and_outcomes(handler_at(server, system="be brief"), ["a"])
        first, second = [asked["messages"] for asked in server.requests]
    assert [one.inference for one in outcomes] == [{"label": "good"}]
    assert second[:-2] == first
    assert second[-2] == {"role": "assistant", "content": "the label is good"}
    assert "the answer is no JSON" in second[-1]["content"]
    assert json.dumps(SCHEMA) in second[-1]["content"]
    assert events.of(UsageReported) == [UsageReported("m", 7, 3)] * 2


def test_second_wrong_answer_is_a_dead_letter():
    with serving(speaking(lambda prompt: GOOD if prompt == "b" else "no")) as server:
        events, outcomes = events_and_outcomes(handler_at(server, full_answer=True), ["a", "b"])
        assert len(server.requests) == len(events.of(UsageReported)) == 3
    (failure,) = failures_among(outcomes)
    assert (failure.element, failure.attempts) == ("a", 1)
    assert isinstance(failure.error, InvalidAnswerError)
    assert [one.inference.choices[0].message.content for one in outcomes if one is not failure] == [GOOD]


def answers_of(asked, prices, cap):
    """The outcomes of prompts whose first answers do not fit, but that of b; and how many requests they took."""
    budget = Budget(prices=prices, max_cost_per_row=cap)
    with serving(speaking(lambda prompt: GOOD if prompt == "b" else repaired(prompt))) as server:
        return list(predict(handler_at(server), asked, budget=budget, on_failure="yield")), len(server.requests)


def test_answer_is_not_sent_back_once_the_row_has_cost_more_than_it_may():
    prices = {"m": Price(request=0.25)}
    (failure, fitting), requests = answers_of(["a", "b"], prices, 0.2)
    assert (fitting.inference, requests) == ({"label": "good"}, 2)
    assert isinstance(failure.error, RowCostError)
    assert str(failure.error).startswith("its requests have cost 0.25, and max_cost_per_row is 0.2, so none is sent")
    assert "the answer is no JSON" in str(failure.error)
    (one,), requests = answers_of(["a"], prices, 0.25)
    assert (one.inference, requests) == ({"label": "good"}, 2)


def test_request_for_a_repair_that_fails_is_the_only_one_sent_again():
    """The first answer is there, and paid for."""

    def fault(asked, before):
        return refusing(500) if len(asked["messages"]) > 1 and before in (1, 2) else None

    with serving(speaking(repaired, fault)) as server:
        events, outcomes = events_and_outcomes(handler_at(server), ["a"])
        lengths = [len(asked["messages"]) for asked in server.requests]
    assert [one.inference for one in outcomes] == [{"label": "good"}]
    assert lengths == [1, 3, 3, 3]
    assert events.of(UsageReported) == [UsageReported("m", 7, 3)] * 2


@pytest.mark.parametrize("depth", [250, 2000])
def test_answer_that_is_nested_deeply_is_sent_back_once_and_is_then_a_dead_letter(depth):
    deep = "[" * depth + "]" * depth
    with serving(lambda asked, before: completion(deep)) as server:
        handler = OpenAIChatModelHandler("m", url=f"{server.url}v1", json_schema={})
        events, (failure,) = events_and_outcomes(handler, ["a"])
        assert len(server.requests) == len(events.of(UsageReported)) == 2
    assert str(failure.error).startswith("the answer is nested too deeply: '[[[")
    assert len(str(failure.error)) < 400


@pytest.mark.parametrize("text", ['{"label": "\ud83d"}', "\ud83d"])
def test_answer_with_a_lone_surrogate_is_sent_back_once(text):
    with serving(speaking(lambda prompt: text if prompt == "a" else GOOD)) as server:
        _, (outcome,) = events_and_outcomes(handler_at(server), ["a"])
        assert len(server.requests) == 2
    assert outcome.inference == {"label": "good"}
