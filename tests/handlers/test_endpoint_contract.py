"""What all handlers of language models behind endpoints have in common."""

from __future__ import annotations

import pickle

import pytest

from endpoint_apis import APIS, EMBEDDINGS, each
from headrace import ConfigurationError, PredictionResult, predict
from headrace.core.events import UsageReported
from headrace.testing import HandlerContract
from http_endpoint import KEY, events_and_outcomes, failures_among

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end", "_keys_in_the_environment")

USED = {
    "chat": (7, 3, 2),
    "completions": (7, 3, 2),
    "anthropic": (9, 3, 2),
    "gemini": (8, 8, 2),
    "embeddings": (5, 0, 0),
}
"""Tokens of the prompt, of the answer, and of the prompt's part in the provider's cache."""


class _Unpooled:
    """A client for each request: the suite asks from one event loop after the other."""

    def create_client(self):
        return "of each request"

    async def request(self, batch, model, inference_args=None):
        assert model == "of each request"
        client = super().create_client()
        try:
            return await super().request(batch, client, inference_args)
        finally:
            await getattr(client, "aclose", client.close)()


@pytest.mark.large
@pytest.mark.usefixtures("api")
class TestTexts(HandlerContract):
    examples = ["a", "bb", "ccc", "dddd", "eeeee"]
    bad_example = 13

    @pytest.fixture(params=[*APIS.values(), EMBEDDINGS], ids=[*APIS, "embeddings"])
    def api(self, request):
        return request.param

    def handler(self, api):
        with api.serving() as server:
            kind = type("Unpooled", (_Unpooled, api.kind), {})
            yield api._replace(kind=kind).handler(server, num_retries=0)


@each()
def test_texts_and_rows_are_answered_in_their_order(api):
    with api.serving() as server:
        handler = api.handler(server, prompt="{n} times {{{word}}}")
        examples = ["a", "bb", {"n": 2, "word": "yes"}]
        expected = [api.prediction(text) for text in ("a", "bb", "2 times {yes}")]
        found = list(predict(handler, examples))
        assert found == [PredictionResult(*pair, "m") for pair in zip(examples, expected, strict=True)]
        assert all(KEY in str(headers) for headers in server.headers)


@each()
def test_tokens_are_reported_for_every_answer(api, request):
    read, written, cached = USED[request.node.callspec.id]
    with api.serving() as server:
        events, _ = events_and_outcomes(api.handler(server, max_batch_size=1), ["a", "b"])
    found = [(one.model, one.input_tokens, one.output_tokens, one.cached_tokens) for one in events.of(UsageReported)]
    assert found == [("m", read, written, cached)] * 2


@each("gemini")
def test_unknown_inference_args_are_refused_before_any_request(api):
    with api.serving() as server:
        for said, args in {
            "'extra_heders', which the client does not know; did you mean 'extra_headers'": {"extra_heders": {}},
            "inference_args must not have 'model'; the handler sets it": {"model": "other"},
        }.items():
            with pytest.raises(ConfigurationError, match=said):
                predict(api.handler(server), ["a"], inference_args=args)
        assert server.requests == []


@each("gemini")
def test_what_is_no_example_is_its_own_dead_letter_and_not_asked(api):
    wrong = [13, None, {"text": "a"}, {"text": None}, [], [{"content": "a"}]]
    with api.serving() as server:
        _, *failures = predict(api.handler(server), ["a", *wrong], on_failure="yield")
        assert api.asked(server) == ["a"]
    assert [(failure.element, failure.attempts) for failure in failures] == [(one, 1) for one in wrong]


@each()
def test_keys_are_in_no_dead_letter_and_no_pickle(api):
    with api.refusing(api.refusal(400, f"we got {KEY}"), "b") as server:
        handler = api.handler(server)
        _, outcomes = events_and_outcomes(handler, ["a", "b"])
    (failure,) = failures_among(outcomes)
    error = failure.error
    assert "we got ***" in str(error)
    assert KEY not in f"{failure} {failure.record} {error!r} {vars(error)}"
    assert KEY not in str(getattr(getattr(error, "request", None), "headers", None))
    assert KEY.encode() not in pickle.dumps(handler)


@each("gemini")
def test_missing_key_is_one_error_that_says_where_it_is_looked_for(api, monkeypatch):
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY")
    with pytest.raises(ConfigurationError, match=r"ModelHandler has no API key: set (OPENAI|ANTHROPIC)_API_KEY"):
        list(predict(api.kind("m"), ["a", "b"], on_failure="yield"))


@each()
def test_wrong_arguments_are_refused_at_construction(api):
    for said, arguments in {
        "model_name must name a model, not ''": {"model_name": ""},
        "url must be that of an API, such as http://localhost:8000/v1": {"url": "localhost:8000"},
        "prompt must name a column of each row in braces": {"prompt": "no column"},
        "prompt is no template: .* Write a literal brace twice": {"prompt": "a {"},
        "prompt must name a column .* Write a literal brace twice": {"prompt": "a {}"},
        "api_key must be a text, or a function that returns one": {"api_key": 3},
        "has no argument 'promt'; did you mean 'prompt'": {"promt": "a {b}"},
        "timeout": {"timeout": 3},
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            api.kind(**{"model_name": "m", **arguments})
