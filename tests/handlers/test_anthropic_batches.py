"""Anthropic's client sends batches to a server on localhost that speaks its Batch API."""

from __future__ import annotations

import pytest

from anthropic_endpoint import refusing, speaking
from batch_endpoint import batching, once
from headrace import EndpointError, Failure, predict
from headrace.handlers import batch_jobs
from headrace.handlers.anthropic_inference import AnthropicChatModelHandler
from http_endpoint import Answer

pytestmark = pytest.mark.usefixtures("module_travels")

KEY = "sk-ant-of-the-environment"


@pytest.fixture(autouse=True)
def _key_and_short_pauses(monkeypatch, requests_end):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.setattr(batch_jobs, "FIRST_POLL_SECS", 0.01)
    monkeypatch.setattr(batch_jobs, "LONGEST_POLL_SECS", 0.02)
    monkeypatch.setattr(batch_jobs, "ARRIVING_SECS", 0.05)


@pytest.fixture
def ask(tmp_path):
    """Makes a handler that sends batches to a server, and keeps them in a folder of the test."""

    def make(server, **options):
        return AnthropicChatModelHandler("m", url=server.url, batch_directory=tmp_path / "batches", **options)

    return make


def texts(results):
    return [str(one.error) if isinstance(one, Failure) else one.inference for one in results]


def keys_of(server):
    """The keys of all requests; the header depends on the client's version."""
    given = {headers.get("x-api-key") or headers["authorization"] for headers in server.headers}
    return {one.removeprefix("Bearer ") for one in given}


def test_empty_account_is_one_error(ask):
    fault = speaking(fault=lambda asked, _: refusing(400, "Your credit balance is too low"))
    with batching(fault) as server, pytest.raises(EndpointError, match="credit balance"):
        list(predict(ask(server), ["a", "b"], on_failure="yield"))


def test_results_that_break_off_are_read_again_and_cost_no_retry(ask):
    broken = Answer(body=b'{"custom_id": "a", "resu', headers={"Content-Type": "application/x-jsonl"})
    with batching(speaking(), once("GET /v1/messages/batches/batch_1/results", broken)) as server:
        assert texts(predict(ask(server, num_retries=0), ["a"])) == ["A"]
        assert len(server.batches) == 1


def test_batch_whose_results_are_gone_is_an_error_with_its_cure(ask):
    gone = r"no longer has the answers of batch batch_1.*another batch_directory"
    archiving = batching(speaking(), ending=lambda batch: setattr(batch, "is_archived", True))
    with archiving as server, pytest.raises(EndpointError, match=gone):
        list(predict(ask(server), ["a"], on_failure="yield"))


def test_submission_is_not_found_before_its_batch_has_ended(ask):
    cut = once("POST /v1/messages/batches", Answer(cut=True))

    def fault(server, method, path):
        server.held = server.paths.count("GET /v1/messages/batches") < 3
        return cut(server, method, path)

    with batching(speaking(), fault) as server:
        server.held = True
        assert texts(predict(ask(server), ["a", "b"])) == ["A", "B"]
        assert len(server.batches) == 1


def test_submission_is_told_from_others_of_its_size_when_those_have_ended(ask):
    cut = once("POST /v1/messages/batches", Answer(cut=True))

    def fault(server, method, path):
        server.held = server.paths.count("GET /v1/messages/batches") < 5
        return cut(server, method, path)

    with batching(speaking(), fault) as server:
        server.make(
            [("somebody-else", {"model": "m", "messages": [{"role": "user", "content": "x"}]})]
        ).status = "completed"
        assert texts(predict(ask(server), ["a"])) == ["A"]
        assert len(server.batches) == 2


def test_key_of_a_function_is_renewed_while_a_batch_runs(ask):
    keys = iter(f"sk-ant-number-{n}" for n in range(1000))
    with batching(speaking()) as server:
        handler = ask(server, api_key=lambda: next(keys))
        assert texts(predict(handler, ["a"])) == ["A"]
        assert len(keys_of(server)) == 1  # a function is asked once a minute
