"""Rows are answered by the Batch APIs of both providers, of which a server on localhost speaks either."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import apache_beam as beam
import pytest

import anthropic_endpoint
import openai_endpoint
from batch_endpoint import _keys_and_short_pauses, batching, once  # noqa: F401 - a fixture
from headrace import EndpointError, Failure, PredictionResult, predict
from headrace.beam import RunInference
from headrace.core.events import UsageReported
from headrace.handlers.anthropic_inference import AnthropicBatches, AnthropicChatModelHandler
from headrace.handlers.openai_inference import OpenAIBatches, OpenAIChatModelHandler
from http_endpoint import KEY, Answer, events_and_outcomes
from pipelines import Run

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end", "_keys_and_short_pauses")

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FITS = '{"n": 1}'
ENDPOINTS = {"openai": openai_endpoint, "anthropic": anthropic_endpoint}
BATCH = {"openai": "GET /v1/batches/batch_1", "anthropic": "GET /v1/messages/batches/batch_1"}
RESULTS = {"openai": "GET /v1/files/output", "anthropic": "GET /v1/messages/batches/batch_1/results"}


@pytest.fixture(params=["openai", "anthropic"])
def provider(request):
    return request.param


@pytest.fixture
def speaking(provider):
    return ENDPOINTS[provider].speaking


@pytest.fixture
def refusing(provider):
    return ENDPOINTS[provider].refusing


@pytest.fixture
def handler(provider, tmp_path):
    """Makes a handler that sends batches to a server, and keeps them in a folder of the test."""

    def make(server, **options):
        options = {"batch_directory": tmp_path / "batches", **options}
        if provider == "openai":
            return OpenAIChatModelHandler("m", url=f"{server.url}v1", **options)
        return AnthropicChatModelHandler("m", url=server.url, **options)

    return make


@pytest.fixture
def ask(handler):
    """What comes of texts at a server: predictions, and the texts of errors in the places of others."""

    def outcomes(server, texts, **options):
        found = predict(handler(server, **options), texts, on_failure="yield")
        return [f"! {one.error}" if isinstance(one, Failure) else one.inference for one in found]

    return outcomes


def sizes(server):
    return [len(batch.requests) for batch in server.batches]


def test_one_batch_answers_everything_in_its_order(handler, speaking):
    with batching(speaking()) as server:
        asked = [f"text {n}" for n in range(50)]
        found = list(predict(handler(server, system="Be brief."), asked, inference_args={"extra_body": {"seed": 7}}))
        assert found == [PredictionResult(text, text.upper(), "m") for text in asked]
        assert sizes(server) == [50]
        body = next(body for _, body in server.batches[0].requests if "text 0" in str(body))
        assert body["messages"][-1] == {"role": "user", "content": "text 0"}
        assert (body["model"], body["seed"]) == ("m", 7)
        assert "Be brief." in str(body)
        assert all(KEY in str(headers) for headers in server.headers)


def test_what_was_sent_before_is_not_sent_again_however_it_is_batched(ask, speaking):
    with batching(speaking()) as server:
        assert ask(server, ["a", "b", "a", "c"]) == ["A", "B", "A", "C"]
        assert ask(server, ["d", "c", "a"]) == ["D", "C", "A"]
        assert sizes(server) == [3, 1]
        assert ask(server, ["a"], system="another") == ["A"]
        assert sizes(server) == [3, 1, 1]


def test_wrong_request_is_the_dead_letter_of_its_element_and_asked_again_by_a_later_run(ask, speaking, refusing):
    faults = [refusing(400, f"no {KEY}")]
    with batching(speaking(fault=lambda asked, _: faults[0] if faults and "bad" in str(asked) else None)) as server:
        good, bad, wrong, fine = ask(server, ["good", "bad", "\ud800", "fine"])
        assert (good, fine) == ("GOOD", "FINE")
        assert "no ***" in bad
        assert "surrogates" in wrong
        faults.clear()
        assert ask(server, ["good", "bad", "fine"]) == ["GOOD", "BAD", "FINE"]
        assert sizes(server) == [3, 1]


def test_wrong_key_is_one_error_and_nothing_is_left_to_look_for(ask, handler, speaking, refusing):
    wrong = lambda server, method, path: refusing(401, f"wrong key {KEY}")  # noqa: E731
    with batching(speaking(), wrong) as server, pytest.raises(EndpointError, match=r"wrong key \*\*\*"):
        list(predict(handler(server), ["a"], on_failure="yield"))
    with batching(speaking()) as server:
        assert ask(server, ["a"]) == ["A"]


@pytest.mark.parametrize(("left", "answered", "batches"), [((2, 0), "ABCD", [4, 2]), ((1, 1, 1), "ABC", [4, 1, 1])])
def test_batch_that_ends_early_is_continued_by_others_but_not_for_ever(left, answered, batches, ask, speaking):
    def ending(batch):
        batch.status, batch.left = "expired", left[batch.number - 1]

    with batching(speaking(), ending=ending) as server:
        found = ask(server, list("abcd"))
        assert found[: len(answered)] == list(answered)
        assert all("without its answer" in one for one in found[len(answered) :])
        assert sizes(server) == batches


def test_passing_error_of_a_request_is_sent_in_another_batch(ask, speaking, refusing):
    faults = iter([refusing(500, "oops", "api_error")])
    fault = lambda asked, _: next(faults, None) if asked["messages"][-1]["content"] == "b" else None  # noqa: E731
    with batching(speaking(fault=fault)) as server:
        assert ask(server, ["x", "b"]) == ["X", "B"]
        assert sizes(server) == [2, 1]


@pytest.mark.parametrize("places", [BATCH, RESULTS], ids=["batch", "results"])
@pytest.mark.parametrize("fault", [429, 503, Answer(cut=True)], ids=["429", "503", "cut"])
def test_poll_that_fails_is_followed_by_another(places, fault, provider, ask, speaking, refusing):
    answer = fault if isinstance(fault, Answer) else refusing(fault)
    with batching(speaking(), once(places[provider], answer)) as server:
        assert ask(server, ["a"], num_retries=0) == ["A"]
        assert len(server.batches) == 1


@pytest.mark.parametrize(("limit", "value"), [("most_requests", 2), ("most_bytes", 800)])
def test_batches_are_split_at_the_provider_s_limits(limit, value, provider, ask, speaking, monkeypatch):
    monkeypatch.setattr(OpenAIBatches if provider == "openai" else AnthropicBatches, limit, value)
    with batching(speaking()) as server:
        assert ask(server, list("abcde")) == list("ABCDE")
        assert sizes(server) == [2, 2, 1]


def test_batch_that_takes_too_long_is_collected_by_a_later_run(ask, speaking):
    with batching(speaking()) as server:
        server.held = True
        (late,) = ask(server, ["a"], max_wait_secs=0.1)
        assert "no answer after 0.1 s; batch batch_1 stays at the provider" in late
        server.held = False
        assert ask(server, ["a"]) == ["A"]
        assert len(server.batches) == 1


def test_usage_is_counted_once(handler, speaking):
    with batching(speaking()) as server:
        for paid in (2, 0):
            events, _ = events_and_outcomes(handler(server), ["a", "b", "a"])
            used = events.of(UsageReported)
            assert sum(one.requests for one in used) == paid
            assert (sum(one.input_tokens for one in used) > 0) == bool(paid)
            assert (sum(one.cached_tokens for one in used) > 0) == bool(paid)


def test_answers_that_do_not_fit_are_sent_back_in_another_batch(ask, speaking):
    answer = lambda text: FITS if "cannot be used" in text or text == "good" else "none"  # noqa: E731
    with batching(speaking(answer)) as server:
        assert ask(server, ["good", "bad"], json_schema=SCHEMA) == [{"n": 1}, {"n": 1}]
        assert sizes(server) == [2, 1]


def test_answer_that_never_fits_is_asked_for_again_by_a_later_run(ask, speaking):
    answers = ["none"]
    with batching(speaking(lambda text: answers[0])) as server:
        assert all("no JSON" in said for said in ask(server, ["a", "a"], json_schema=SCHEMA))
        assert len(server.batches) == 2
        answers[0] = FITS
        for _ in range(2):
            assert ask(server, ["a"], json_schema=SCHEMA) == [{"n": 1}]
            assert len(server.batches) == 3


NO_COMPLETIONS = ["text", [1], {}, None, {"choices": []}, {"choices": ["x"], "content": ["x"]}, {"content": 5}]


def test_answer_that_is_no_completion_is_a_dead_letter_and_asked_for_again_by_a_later_run(ask, speaking):
    speak, texts = speaking(), [f"x{n}" for n in range(9)]
    wrong = dict(zip(texts, NO_COMPLETIONS, strict=False))

    def answer(asked, before):
        text = asked["messages"][-1]["content"]
        return Answer(200, wrong[text]) if text in wrong else speak(asked, before)

    with batching(answer) as server:
        found = ask(server, texts)
        assert [one.startswith("!") for one in found] == [True] * 7 + [False] * 2
        assert sizes(server) == [9]
        wrong.clear()
        for _ in range(2):
            assert ask(server, texts) == [text.upper() for text in texts]
            assert sizes(server) == [9, 7]


def as_json(value):
    return json.dumps(value).encode() + b"\n"


DAMAGES = [
    lambda line: as_json({"custom_id": json.loads(line)["custom_id"], "response": None, "result": None}),
    lambda line: line.replace(b'"X', b'"\xff'),
    lambda line: line[:-30] + b"\n",
]


def test_damaged_line_is_the_dead_letter_of_its_row(ask, speaking):
    texts = [f"x{n}" for n in range(9)]
    with batching(speaking()) as server:
        server.damage = lambda lines: [
            *(damage(line) for damage, line in zip(DAMAGES, lines, strict=False)),
            *lines[len(DAMAGES) :],
        ]
        assert sum("damaged line" in one for one in ask(server, texts)) == len(DAMAGES)
        server.damage = lambda lines: lines
        assert ask(server, texts) == [text.upper() for text in texts]
        assert sizes(server) == [9, len(DAMAGES)]


def test_files_that_lack_answers_are_read_again_and_what_never_comes_is_sent_again(ask, speaking):
    readings = iter(range(1))
    with batching(speaking()) as server:
        server.damage = lambda lines: lines[:-2] if next(readings, None) is not None else lines
        assert ask(server, list("abcd")) == list("ABCD")
        assert sizes(server) == [4]
        server.damage = lambda lines: lines[:-2] if len(lines) == 4 else lines
        assert ask(server, list("efgh")) == list("EFGH")
        assert sizes(server) == [4, 4, 2]


@pytest.mark.parametrize("provider", ["openai"], indirect=True)
def test_damaged_folder_is_one_error_and_nothing_is_sent(ask, speaking, tmp_path):
    asked, file = [f"{n} " * 100 for n in range(50)], tmp_path / "batches" / "batches.db"
    with batching(speaking()) as server:
        ask(server, asked)
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = file.read_bytes()
        file.write_bytes(content[:4096] + b"x" * 40_000 + content[44_096:])
        with pytest.raises(EndpointError, match=r"cannot be used.*Name another folder"):
            ask(server, [*asked, "new"])
        assert len(server.batches) == 1


@pytest.mark.parametrize("options", [{}, {"max_batch_duration_secs": 5}], ids=["bundle", "bundles"])
@pytest.mark.parametrize("provider", ["openai"], indirect=True)
def test_pipeline_sends_batches_and_another_one_finds_their_answers(options, handler, speaking, refusing):
    faults = {"x3": refusing(400, "no such word"), "x4": Answer(body=["no such word"])}
    fault = speaking(fault=lambda asked, _: faults.get(asked["messages"][0]["content"]))
    with batching(fault) as server:
        for batches in (1, 2):  # what failed, or could not be used, is asked for again
            run = Run()
            inference = RunInference(handler(server, **options)).with_exception_handling()
            good, bad = run.create([f"x{n}" for n in range(6)]) | inference
            letters = bad.failed_inferences | beam.Map(str)
            found, failed = run.values(good=good | beam.Map(lambda one: one.inference), letters=letters)
            assert sorted(found) == ["X0", "X1", "X2", "X5"]
            assert ["no such word" in letter for letter in failed] == [True, True]
            asked = sorted(body["messages"][0]["content"] for body in server.bodies)
            assert asked == sorted([f"x{n}" for n in range(6)] + ["x3", "x4"] * (batches - 1))
