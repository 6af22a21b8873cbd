"""Remote handlers and engines in a pipeline: what comes out belongs to its element, metrics are Beam's."""

from __future__ import annotations

import asyncio
import os

import pytest

from headrace import report_generation
from headrace.beam import ElementFailure, KeyedModelHandler, ModelMetadata, RemoteModelHandler, RunInference
from leap import LIMIT_SECS, leap
from pipelines import by_second
from toy_engine import ToyEngine, ToyEngineHandler


class Length(RemoteModelHandler[str, int, str]):
    async def create_client(self) -> str:
        return "client"

    async def request(self, batch, model, inference_args=None):
        assert model == "client"
        await asyncio.sleep(0.001)
        return [len(text) if text else ElementFailure(ValueError("empty")) for text in batch]

    def batch_elements_kwargs(self):
        return {"min_batch_size": 2, "max_batch_size": 2}


def test_remote_handler_runs_in_a_pipeline(run):
    elements = [(n, "x" * (n % 5)) for n in range(50)]
    found, failed = run.caught(elements, KeyedModelHandler(Length()))
    assert sorted(found) == [(n, n % 5) for n in range(50) if n % 5]
    assert sorted((element, error[1]) for [element], error in failed) == [
        ((n, ""), "ValueError('empty')") for n in range(0, 50, 5)
    ]
    assert run.metrics()["RunInference", "num_inferences"] == 40


class Stuck(Length):
    """Takes too long for an empty text, once another batch is there."""

    others = asyncio.Event()

    async def request(self, batch, model, inference_args=None):
        if "" in batch:
            await Stuck.others.wait()
            leap()
            await asyncio.Event().wait()
        asyncio.current_task().add_done_callback(lambda _: Stuck.others.set())
        return await super().request(batch, model, inference_args)


def test_time_limit_of_a_remote_handler_is_that_of_a_request(run):
    found, failed = run.caught(["a", "bb", "", "ccc"], Stuck(), {"timeout": LIMIT_SECS})  # events work in no host
    assert sorted(found) == [1, 2]
    assert sorted((element, error[0]) for element, error in failed) == [([""], TimeoutError), (["ccc"], TimeoutError)]


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


@pytest.mark.usefixtures("module_travels")
@IN_A_HOST_OR_HERE
def test_predictions_and_dead_letters_keep_timestamps_and_windows(run, isolate):
    elements = by_second(run, "numbers", [*((n, n) for n in range(25)), ("bad", 25)])
    infer = RunInference(Reporting(max_concurrent=5), isolate=isolate)
    good, dead = elements | infer.with_exception_handling()
    found, (letter,) = run.collect(good=good, dead=dead.failed_inferences)
    assert sorted(found) == [(2 * n, float(n), (n // 10 * 10.0, n // 10 * 10.0 + 10)) for n in range(25)]
    (element, error), *place = letter
    assert (element, error[1], place) == (["bad"], "ValueError(\"no number: 'bad'\")", [25.0, (20.0, 30.0)])
    metrics = run.metrics()
    assert metrics["RunInference", "num_inferences"] == 25
    assert metrics["RunInference", "output_tokens"] == 78
    assert metrics["RunInference", "toy-_time_to_first_token_milli_secs"].max == 100
    assert metrics["RunInference", "output_tokens_per_sec"].min == 6


@pytest.mark.usefixtures("module_travels")
@IN_A_HOST_OR_HERE
def test_newer_engines_replace_older_ones(run, isolate):
    elements = by_second(run, "Elements", [(1, 1), (11, 11)])
    newer = by_second(run, "Newer", [(ModelMetadata("v1", "newer"), 10)])
    found = run.infer(elements, Versioned(), model_metadata_pcoll=newer, isolate=isolate)
    assert sorted((number, path) for number, path, _ in found) == [(1, "v0"), (11, "v1")]
    processes = {process for *_, process in found}
    assert (len(processes), os.getpid() in processes) == ((2, False) if isolate else (1, True))
    assert run.metrics()["RunInference", "model_refreshes"] == 1
