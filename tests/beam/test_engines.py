"""Engines in a pipeline: predictions leave as they are ready, each with its element's timestamp and window."""

from __future__ import annotations

import asyncio
import os

import pytest

from headrace import report_generation
from headrace.beam import ModelMetadata, RunInference
from pipelines import by_second
from toy_engine import ToyEngine, ToyEngineHandler

pytestmark = pytest.mark.usefixtures("module_travels")

IN_A_HOST_OR_HERE = pytest.mark.parametrize("isolate", [False, True], ids=["here", "in a host"])


class Backwards(ToyEngine):
    """Answers what came last first."""

    async def turn(self, example):
        for _ in range(100 - example):
            await asyncio.sleep(0)


class Reporting(ToyEngineHandler):
    def load_model(self):
        return Backwards()

    async def submit(self, example, model, inference_args=None):
        report_generation("toy", input_tokens=2, output_tokens=3, seconds=0.5, first_token_secs=0.1)
        return await super().submit(example, model, inference_args)


class Versioned(ToyEngineHandler):
    """Its engine is a path, which answers each element."""

    path = "v0"

    def load_model(self):
        return self.path

    def update_model_path(self, model_path=None):
        self.path = model_path or self.path

    async def submit(self, example, model, inference_args=None):
        return example, model, os.getpid()


@IN_A_HOST_OR_HERE
def test_predictions_keep_timestamps_and_windows(run, isolate):
    elements = by_second(run, "numbers", [(n, n) for n in range(25)])
    found = run.collect(out=elements | RunInference(Reporting(max_concurrent=5), isolate=isolate))
    assert sorted(found) == [(2 * n, float(n), (n // 10 * 10.0, n // 10 * 10.0 + 10)) for n in range(25)]
    metrics = run.metrics()
    assert metrics["RunInference", "num_inferences"] == 25
    assert metrics["RunInference", "output_tokens"] == 75
    assert metrics["RunInference", "toy-_time_to_first_token_milli_secs"].max == 100
    assert metrics["RunInference", "output_tokens_per_sec"].min == 6


@IN_A_HOST_OR_HERE
def test_elements_that_fail_are_dead_letters(run, isolate):
    found, failed = run.caught([1, "bad", 2], Reporting(), {"timeout": 60}, isolate=isolate)
    assert sorted(found) == [2, 4]
    assert [(element, error[1]) for element, error in failed] == [(["bad"], "ValueError(\"no number: 'bad'\")")]


@IN_A_HOST_OR_HERE
def test_newer_engines_replace_older_ones(run, isolate):
    elements = by_second(run, "Elements", [(1, 1), (11, 11)])
    newer = by_second(run, "Newer", [(ModelMetadata("v1", "newer"), 10)])
    found = run.infer(elements, Versioned(), model_metadata_pcoll=newer, isolate=isolate)
    assert sorted((number, path) for number, path, _ in found) == [(1, "v0"), (11, "v1")]
    processes = {process for *_, process in found}
    assert (len(processes), os.getpid() in processes) == ((2, False) if isolate else (1, True))
    assert run.metrics()["RunInference", "model_refreshes"] == 1
