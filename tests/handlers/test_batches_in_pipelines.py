"""Elements of a pipeline are sent with a provider's Batch API; of a bundle, and of several that wait for each other."""

from __future__ import annotations

import apache_beam as beam
import pytest

from batch_endpoint import batching
from headrace.beam import RunInference
from headrace.handlers import batch_jobs
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from http_endpoint import Answer
from openai_endpoint import refusing, speaking
from pipelines import Run


@pytest.fixture(autouse=True)
def _key_and_short_pauses(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setattr(batch_jobs, "FIRST_POLL_SECS", 0.01)


@pytest.mark.parametrize("options", [{}, {"max_batch_duration_secs": 5}], ids=["bundle", "bundles"])
def test_pipeline_sends_batches_and_another_one_finds_their_answers(tmp_path, options):
    faults = {"x3": refusing(400, "no such word"), "x4": Answer(body=["no such word"])}
    fault = speaking(fault=lambda asked, _: faults.get(asked["messages"][0]["content"]))
    with batching(fault) as server:
        for batches in (1, 2):  # what failed, or could not be used, is asked for again
            handler = OpenAIChatModelHandler("m", url=f"{server.url}v1", batch_directory=tmp_path / "b", **options)
            run = Run()
            good, bad = run.create([f"x{n}" for n in range(6)]) | RunInference(handler).with_exception_handling()
            letters = bad.failed_inferences | beam.Map(str)
            found, failed = run.values(good=good | beam.Map(lambda one: one.inference), letters=letters)
            assert sorted(found) == ["X0", "X1", "X2", "X5"]
            assert ["no such word" in letter for letter in failed] == [True, True]
            asked = sorted(body["messages"][0]["content"] for body in server.bodies)
            assert asked == sorted([f"x{n}" for n in range(6)] + ["x3", "x4"] * (batches - 1))
