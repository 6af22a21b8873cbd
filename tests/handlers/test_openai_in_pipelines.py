"""Handlers of models behind an API in a pipeline: the key stays out of it, and its dead letters."""

from __future__ import annotations

import apache_beam as beam
import pytest

from headrace.beam import RunInference
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from http_endpoint import serving
from openai_endpoint import prompts_of, refusing, speaking
from pipelines import Run

KEY = "sk-of-the-environment"


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def test_pipeline_asks_an_endpoint_and_nobody_reads_the_key():
    run = Run()
    fault = speaking(
        fault=lambda asked, before: refusing(400, f"you sent {KEY}") if prompts_of(asked) == ["x3"] else None
    )
    with serving(fault) as server:
        handler = OpenAIChatModelHandler("m", prompt="x{n}", url=f"{server.url}v1")
        good, bad = run.create([{"n": n} for n in range(5)]) | RunInference(handler).with_exception_handling()
        letters = bad.failed_inferences | beam.Map(str)
        assert KEY not in str(run.pipeline.to_runner_api())
        found, failed = run.values(good=good | beam.Map(lambda one: one.inference), letters=letters)
    assert sorted(found) == ["X0", "X1", "X2", "X4"]
    (letter,) = failed
    assert "you sent ***" in letter
    assert KEY not in letter
