"""What one element is refused is that element's, and an answer is paid for once, whatever is in it."""

from __future__ import annotations

import openai
import pytest
from google.auth.credentials import AnonymousCredentials

import anthropic_endpoint
import gemini_endpoint
import openai_endpoint
from endpoint_apis import APIS, EMBEDDINGS, each
from headrace import Budget, EndpointError, PredictionCountError, predict
from headrace.core.events import UsageReported
from headrace.handlers.anthropic_inference import AnthropicModelHandler, message_from_string
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from headrace.handlers.prompts import InvalidAnswerError
from http_endpoint import KEY, Answer, events_and_outcomes, failures_among, serving

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end", "_keys_in_the_environment")

EIGHT = list("abcdefgh")
BATCHES = pytest.mark.parametrize("size", [1, 8])


@each("embeddings")
@pytest.mark.parametrize("status", [401, 403, 404])
@BATCHES
def test_refusal_of_one_element_is_its_own(api, status, size):
    """Of the first, of another of the first eight, and of one that comes later."""
    prompts, refused = [*EIGHT, *"xyz"], ["a", "f", "z"]
    with api.refusing(api.refusal(status), *refused) as server:
        found = list(predict(api.handler(server, max_batch_size=size), prompts, on_failure="yield"))
        assert [text for text in api.asked(server) if text != "Hi"] == prompts
    failures = failures_among(found)
    assert [(failure.element, failure.attempts) for failure in failures] == [(text, 1) for text in refused]
    assert all(str(status) in str(failure.error) for failure in failures)
    assert [one.inference for one in found if one not in failures] == [
        text.upper() for text in prompts if text not in refused
    ]


@each()
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404])
@BATCHES
def test_refusal_of_everything_is_one_error(api, status, size):
    with api.refusing(api.refusal(status, f"not with {KEY}")) as server:
        with pytest.raises(EndpointError, match=rf"{status}.*not with \*\*\*"):
            list(predict(api.handler(server, max_batch_size=size), EIGHT * 20, on_failure="yield"))
        assert len(server.requests) <= size + 1


def test_empty_account_stops_a_run_that_has_worked():
    for api, refusal in (
        (APIS["chat"], openai_endpoint.refusing(429, "pay first", "insufficient_quota")),
        (EMBEDDINGS, openai_endpoint.refusing(402, "pay first")),
        (APIS["anthropic"], anthropic_endpoint.refusing(400, "Your credit balance is too low: pay first")),
    ):
        refusing = api.serving(lambda asked, before, refusal=refusal: refusal if before else None)
        with refusing as server, pytest.raises(EndpointError, match="pay first"):
            list(predict(api.handler(server, max_batch_size=1), EIGHT * 20, on_failure="yield"))


class WithItsOwnClient(OpenAIChatModelHandler):
    """As one for Azure, whose key is not in ``OPENAI_API_KEY``."""

    def create_client(self):
        return openai.AsyncOpenAI(api_key="of Azure", base_url=self._url, max_retries=0)


def token():
    credentials = AnonymousCredentials()
    credentials.token = "token"
    return credentials


VERTEX = {"project": "p", "location": "l", "credentials": token}
"""Google's credentials take the place of a key."""


@pytest.mark.parametrize(
    "api",
    [APIS["chat"]._replace(kind=WithItsOwnClient), APIS["anthropic"], APIS["gemini"]._replace(options=VERTEX)],
    ids=["azure", "token", "vertex"],
)
def test_refusal_of_what_was_sent_in_place_of_a_key_asks_for_no_key(api, monkeypatch):
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.delenv(f"{name}_API_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")
    with api.refusing(api.refusal(401)) as server, pytest.raises(EndpointError, match="401") as caught:
        list(predict(api.handler(server), ["a", "b"], on_failure="yield"))
    assert "API key" not in str(caught.value)


@pytest.mark.parametrize(("status", "prompt"), [(400, "a"), (400, "f"), (401, "a"), (404, "f")])
def test_texts_that_share_a_request_are_searched_for_the_one_that_is_refused(status, prompt):
    with EMBEDDINGS.refusing(EMBEDDINGS.refusal(status), prompt) as server:
        found = list(predict(EMBEDDINGS.handler(server, max_batch_size=8), EIGHT, on_failure="yield"))
        paid = [text for asked in server.requests if prompt not in asked["input"] for text in asked["input"]]
    assert [failure.element for failure in failures_among(found)] == [prompt]
    assert sorted(text for text in paid if text != "Hi") == [text for text in EIGHT if text != prompt]


@each("gemini")  # whose client escapes it
@BATCHES
def test_text_with_half_of_a_surrogate_pair_is_a_dead_letter_and_costs_the_others_nothing(api, size):
    with api.refusing(None) as server:
        found = list(predict(api.handler(server, max_batch_size=size), ["a", "\ud800", "b"], on_failure="yield"))
        assert len(server.requests) <= 2
    (failure,) = failures_among(found)
    assert (failure.element, failure.attempts, type(failure.error)) == ("\ud800", 1, UnicodeEncodeError)
    assert len(found) == 3


def test_texts_that_were_embedded_are_not_paid_again_if_the_others_have_to_wait():
    busy = [openai_endpoint.refusing(429), openai_endpoint.refusing(500)]

    def fault(asked, before):
        if "a" in asked["input"]:
            return openai_endpoint.refusing(403)
        return busy.pop() if asked["input"] == list("efgh") and busy else None

    with serving(openai_endpoint.speaking(fault=fault)) as server:
        found = list(predict(EMBEDDINGS.handler(server, max_batch_size=8), EIGHT, on_failure="yield"))
        assert [asked["input"] for asked in server.requests].count(["b"]) == 1
    assert [failure.element for failure in failures_among(found)] == ["a"]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.usefixtures("_plain_clients_are_closed")
def test_beams_handler_has_a_refusal_of_one_prompt_as_its_own(answers, monkeypatch):
    refusal = anthropic_endpoint.refusing(403)
    fault = lambda asked, before: refusal if not answers or asked["messages"][0]["content"] == "a" else None  # noqa: E731
    with serving(anthropic_endpoint.speaking(fault=fault)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        handler = AnthropicModelHandler(f"m{answers}", message_from_string, min_batch_size=4, max_batch_size=4)
        if answers:
            found = list(predict(handler, EIGHT, on_failure="yield"))
            assert [failure.element for failure in failures_among(found)] == ["a"]
        else:
            with pytest.raises(EndpointError, match="refused the first request"):
                list(predict(handler, EIGHT, on_failure="yield"))
        assert len(server.requests) == 8


@each("embeddings")
def test_answers_beside_a_refusal_are_counted_and_kept(api, tmp_path):
    with api.refusing(api.refusal(404), "f") as server:
        handler = api.handler(server, max_batch_size=8)
        events, outcomes = events_and_outcomes(
            handler, EIGHT, cache=tmp_path / "cache", budget=Budget(max_tokens=10**6)
        )
        assert (len(events.of(UsageReported)), len(failures_among(outcomes))) == (7, 1)
        server.requests.clear()
        assert len(failures_among(predict(handler, EIGHT, cache=tmp_path / "cache", on_failure="yield"))) == 1
        assert api.asked(server) in (["f"], ["Hi", "f"])


def with_text(api, text):
    """A right answer of an API, with something else in the place of its text."""
    if api.endpoint is gemini_endpoint:
        return gemini_endpoint.response(gemini_endpoint.candidate(text))
    if api is APIS["anthropic"]:
        body = anthropic_endpoint.message("x").body
        return Answer(body={**body, "content": [{"type": "text", "text": text}]})
    if api is APIS["chat"]:
        return openai_endpoint.completion(text)
    choice = {"index": 0, "finish_reason": "stop", "text": text}
    return Answer(body={"id": "c", "object": "text_completion", "choices": [choice], "usage": openai_endpoint.USED})


def changed(api, **fields):
    return Answer(body={**with_text(api, "x").body, **fields})


DEEP = []
for _ in range(400):
    DEEP = [DEEP]
DEEPER = b'{"choices": %s, "content": %s, "candidates": %s}' % ((b"[" * 2000 + b"]" * 2000,) * 3)
GARBAGE = {
    "number": lambda api: with_text(api, 7),
    "nan": lambda api: with_text(api, float("nan")),
    "dict": lambda api: with_text(api, {"a": 1}),
    "deep": lambda api: with_text(api, DEEP),
    "no-parts": lambda api: changed(api, choices=[], content=7, candidates=7),
    "null-message": lambda api: changed(api, choices=[{"index": 0, "message": None}], content=[None], candidates=[7]),
    "strings": lambda api: changed(api, choices="ab", content="ab", candidates="ab"),
    "error": lambda api: Answer(body={"error": {"message": "upstream failed", "code": 502}, "candidates": 7}),
    "null": lambda api: Answer(body=b"null"),
    "half": lambda api: Answer(body=b'{"choices": [{"mess'),
    "bytes": lambda api: Answer(body=b"\xff\xfe\x00garbage"),
    "empty": lambda api: Answer(body=b" "),
    "deeper": lambda api: Answer(body=DEEPER),
}


@each("embeddings")
@BATCHES
def test_answer_that_is_none_is_paid_for_once(api, size):
    prompts = ["good", *GARBAGE, "fine"]
    answers = {name: garbage(api) for name, garbage in GARBAGE.items()}
    fault = lambda asked, before: answers.get(api.texts(asked)[0])  # noqa: E731
    with serving(api.endpoint.speaking(fault=fault)) as server:
        events, outcomes = events_and_outcomes(api.handler(server, max_batch_size=size), prompts)
        assert api.asked(server) == sorted(prompts)
    failures = failures_among(outcomes)
    assert sorted(failure.element for failure in failures) == sorted(GARBAGE)
    assert {(failure.attempts, type(failure.error)) for failure in failures} == {(1, InvalidAnswerError)}
    assert sorted(one.inference for one in outcomes if one not in failures) == ["FINE", "GOOD"]
    assert len(events.of(UsageReported)) == len(prompts)


def embeddings_of(*indexes, vector=lambda place: [float(place)]):
    """Embeddings with these indexes; None: without one."""
    data = [
        {"object": "embedding", "embedding": vector(place)} | ({} if index is None else {"index": index})
        for place, index in enumerate(indexes)
    ]
    return Answer(body={"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 5}})


def embedded(answer, texts, **options):
    with serving(lambda asked, before: answer) as server:
        events, outcomes = events_and_outcomes(EMBEDDINGS.handler(server, max_batch_size=3), texts, **options)
        assert len(server.requests) == len(events.of(UsageReported)) == 1
    return outcomes


def test_embeddings_of_which_nobody_knows_whose_they_are_are_nobodys():
    for indexes in ((0, 1, 0), (1, 2, 3), (0, 1, -1), (0, 1), (0, 1, None), (0, 1, "2"), (0, 1, 5), (0, 1, [2])):
        failures = failures_among(embedded(embeddings_of(*indexes), ["a", "b", "c"]))
        assert [failure.element for failure in failures] == ["a", "b", "c"]
        assert {type(failure.error) for failure in failures} <= {PredictionCountError, InvalidAnswerError}


def test_embeddings_have_the_order_of_their_indexes():
    assert [one.inference for one in embedded(embeddings_of(2, 0, 1), ["a", "b", "c"])] == [[1.0], [2.0], [0.0]]
    assert [one.inference for one in embedded(embeddings_of(None, None), ["a", "b"])] == [[0.0], [1.0]]
    assert failures_among(embedded(embeddings_of(1), ["a"]))


def test_embedding_that_is_none_costs_its_text_alone():
    for wrong in (None, 7, {}, [], ["a"], [None], [[1.0]], [float("nan")], DEEP):
        answer = embeddings_of(0, 1, 2, vector=lambda place, wrong=wrong: wrong if place == 1 else [1.0])
        outcomes = embedded(answer, ["a", "b", "c"])
        assert [failure.element for failure in failures_among(outcomes)] == ["b"]
        assert len(outcomes) == 3


def test_embeddings_that_are_none_are_paid_for_once():
    wrong = ([], None, "abc", [1, 2, 3], [None] * 3)
    for body in (b"null", [1], b"{", *({"data": data} for data in wrong)):
        failures = embedded(Answer(body=body), ["a", "b", "c"])
        assert [type(failure.error) for failure in failures] == [InvalidAnswerError] * 3


def test_embeddings_that_the_user_wants_encoded_stay_so():
    answer = embeddings_of(0, vector=lambda place: "AACAPw==")
    (result,) = embedded(answer, ["a"], inference_args={"encoding_format": "base64"})
    assert result.inference == "AACAPw=="
    assert [one.inference for one in embedded(answer, ["a"])] == [[1.0]]
