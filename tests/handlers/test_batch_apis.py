"""What is particular in OpenAI's and Anthropic's Batch APIs, of which a server on localhost speaks either."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import anthropic_endpoint
from batch_endpoint import _keys_and_short_pauses, batching, once  # noqa: F401 - a fixture
from headrace import ConfigurationError, EndpointError, Failure, predict
from headrace.handlers import batch_jobs
from headrace.handlers.anthropic_inference import AnthropicChatModelHandler
from headrace.handlers.openai_inference import (
    OpenAIChatModelHandler,
    OpenAICompletionsModelHandler,
    OpenAIEmbeddingsModelHandler,
)
from http_endpoint import Answer
from leap import LIMIT_SECS, leap
from openai_endpoint import refusing, speaking, vector_of
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end", "_keys_and_short_pauses")


@pytest.fixture
def ask(tmp_path):
    """Makes a handler that sends batches to a server, and keeps them in a folder of the test."""

    def make(server, kind=OpenAIChatModelHandler, **options):
        return kind("m", url=f"{server.url}v1", batch_directory=tmp_path / "batches", **options)

    return make


@pytest.fixture
def claude(tmp_path):
    """The same for Anthropic's handler."""
    return partial(AnthropicChatModelHandler, "m", batch_directory=tmp_path / "batches")


def texts(results):
    return [str(one.error) if isinstance(one, Failure) else one.inference for one in results]


def outcomes(handler, elements, **options):
    """Predictions, and the texts of errors in the places of others."""
    return texts(predict(handler, elements, on_failure="yield", **options))


def test_batch_of_completions_and_embeddings(ask):
    prediction = {OpenAICompletionsModelHandler: "{}\u2028\x85end".format, OpenAIEmbeddingsModelHandler: vector_of}
    with batching(speaking("{}\u2028\x85end".format)) as server:  # which ends no line
        for kind, expected in prediction.items():
            assert texts(predict(ask(server, kind), ["a", "bbb"])) == [expected("a"), expected("bbb")]
        assert len(server.batches) == 2


def test_unknown_model_is_one_error(ask):
    fault = speaking(fault=lambda asked, _: refusing(404, "no such model", "model_not_found"))
    with batching(fault) as server, pytest.raises(EndpointError, match="no such model"):
        list(predict(ask(server), ["a", "b"], on_failure="yield"))


def test_batch_is_found_although_this_machine_s_clock_is_ahead(ask):
    def fault(server, method, path):
        for batch in server.batches:
            batch.created = time.time() - 7200
        return cut(server, method, path)

    cut = once("POST /v1/batches", Answer(cut=True))
    with batching(speaking(), fault) as server:
        assert texts(predict(ask(server), ["a", "b"])) == ["A", "B"]
        assert len(server.batches) == 1


def test_batch_that_fails_validation_is_one_error_and_may_be_sent_again(ask):
    def ending(batch):
        if batch.number == 1:
            batch.status = "failed"
            batch.errors = [{"code": "invalid_method", "message": "No such method", "line": 7}]

    with batching(speaking(), ending=ending) as server:
        with pytest.raises(EndpointError, match=r"refuses batch batch_1: No such method \(line 7\)"):
            list(predict(ask(server), ["a"], on_failure="yield"))
        assert texts(predict(ask(server), ["a"])) == ["A"]


@pytest.mark.parametrize("refused", [5, 10**6])
def test_batch_for_which_there_is_no_room_is_sent_when_there_is(refused, ask, monkeypatch):
    def full(batch):
        if batch.number <= refused:
            batch.status = "failed"
            batch.errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "line": None}]

    monkeypatch.setattr(batch_jobs, "REFUSED_SECS", 0.01)
    with batching(speaking(), ending=full) as server:
        if refused == 5:
            assert texts(predict(ask(server), ["a"])) == ["A"]
            assert len(server.batches) == 6
        else:
            assert "took no batch with it in time" in outcomes(ask(server, max_wait_secs=0.1), ["a"])[0]


def test_answers_whose_file_comes_late_are_waited_for(ask):
    with batching(speaking(), ending=lambda batch: setattr(batch, "is_late", True)) as server:
        assert texts(predict(ask(server), ["a"])) == ["A"]
        assert len(server.batches) == 1


def test_answers_are_kept_although_the_file_of_errors_is_gone(ask):
    faults = iter([refusing(400, "bad day")])
    once_bad = speaking(fault=lambda asked, _: next(faults, None) if "bad" in str(asked) else None)
    with batching(once_bad, lambda server, method, path: refusing(404) if "files/errors" in path else None) as server:
        assert texts(predict(ask(server), ["a", "bad", "c"])) == ["A", "BAD", "C"]
        assert [len(batch.requests) for batch in server.batches] == [3, 1]


@pytest.mark.parametrize("name", ["extra_headers", "extra_query"])
def test_what_a_batch_has_no_place_for_is_an_error(name, ask):
    with batching(speaking()) as server:
        with pytest.raises(ConfigurationError, match=f"{name}.*together with batch_directory"):
            list(predict(ask(server), ["a"], inference_args={name: {"a": "b"}}))
        assert not server.batches


def test_batch_that_the_provider_no_longer_has_is_an_error_with_its_cure(ask):
    with batching(speaking()) as server:
        server.held = True
        outcomes(ask(server, max_wait_secs=0.1), ["a"])
        server.batches.clear()
        with pytest.raises(EndpointError, match="no batch batch_1 any more, name another batch_directory"):
            list(predict(ask(server), ["a"], on_failure="yield"))


@pytest.mark.parametrize("answer", [refusing(503), refusing(500), Answer(cut=True)], ids=["503", "500", "cut"])
def test_upload_that_fails_is_repeated_and_no_batch_is_looked_for(answer, ask):
    with batching(speaking(), once("POST /v1/files", answer)) as server:
        assert texts(predict(ask(server), ["a", "b"])) == ["A", "B"]
        assert len(server.batches) == 1
        assert "GET /v1/batches" not in server.paths


def test_run_that_is_abandoned_says_how_to_collect_its_batch(ask, caplog):
    with batching(speaking()) as server, caplog.at_level(logging.WARNING):
        server.held = True
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: wait_until(lambda: "GET /v1/batches/batch_1" in server.paths) and leap())
            (late,) = outcomes(ask(server), ["a"], timeout=LIMIT_SECS)
        assert f"longer than {LIMIT_SECS} s" in late
        assert wait_until(lambda: "batch batch_1 stays at the provider" in caplog.text)
        assert "run again with the same batch_directory to collect it" in caplog.text


def test_cached_predictions_are_those_of_single_requests(ask, tmp_path):
    cache = str(tmp_path / "cache.db")
    with batching(speaking()) as server:
        list(predict(ask(server), ["a"], cache=cache))
        single = OpenAIChatModelHandler("m", url=f"{server.url}v1")
        assert texts(predict(single, ["a"], cache=cache)) == ["A"]


def test_batch_directory_that_cannot_be_used_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for wrong in (file, "gs://bucket/batches", ""):
        with pytest.raises(ConfigurationError, match="batch_directory"):
            OpenAIChatModelHandler("m", batch_directory=wrong)
    with pytest.raises(ConfigurationError, match="max_wait_secs"):
        OpenAIChatModelHandler("m", batch_directory=tmp_path, max_wait_secs=0)


def test_results_that_break_off_are_read_again_and_cost_no_retry(claude):
    broken = Answer(body=b'{"custom_id": "a", "resu', headers={"Content-Type": "application/x-jsonl"})
    with batching(anthropic_endpoint.speaking(), once("GET /v1/messages/batches/batch_1/results", broken)) as server:
        assert texts(predict(claude(url=server.url, num_retries=0), ["a"])) == ["A"]
        assert len(server.batches) == 1


def test_batch_whose_results_are_gone_is_an_error_with_its_cure(claude):
    gone = r"no longer has the answers of batch batch_1.*another batch_directory"
    archiving = batching(anthropic_endpoint.speaking(), ending=lambda batch: setattr(batch, "is_archived", True))
    with archiving as server, pytest.raises(EndpointError, match=gone):
        list(predict(claude(url=server.url), ["a"], on_failure="yield"))


def test_submission_is_told_from_others_of_its_size_when_those_have_ended(claude):
    cut = once("POST /v1/messages/batches", Answer(cut=True))

    def fault(server, method, path):
        server.held = server.paths.count("GET /v1/messages/batches") < 5
        return cut(server, method, path)

    theirs = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with batching(anthropic_endpoint.speaking(), fault) as server:
        server.make([("somebody-else", theirs)]).status = "completed"
        assert texts(predict(claude(url=server.url), ["a"])) == ["A"]
        assert len(server.batches) == 2
