"""Remote handlers in a pipeline: outputs keep their elements' keys, failures are dead letters, metrics are Beam's."""

from __future__ import annotations

import asyncio

import apache_beam as beam

from headrace.beam import ElementFailure, KeyedModelHandler, RemoteModelHandler, RunInference
from leap import LIMIT_SECS, leap


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
    good, bad = run.create(elements) | RunInference(KeyedModelHandler(Length())).with_exception_handling()
    letters = bad.failed_inferences | beam.MapTuple(lambda element, error: (element[0], error[1]))
    found, failed = run.values(good=good, letters=letters)
    assert sorted(found) == [(n, n % 5) for n in range(50) if n % 5]
    assert sorted(failed) == [((n, ""), "ValueError('empty')") for n in range(0, 50, 5)]
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
    infer = RunInference(Stuck()).with_exception_handling(timeout=LIMIT_SECS)
    assert not infer._spec.isolated
    good, bad = run.create(["a", "bb", "", "ccc"]) | infer
    letters = bad.failed_inferences | beam.MapTuple(lambda element, error: (element, error[0]))
    found, failed = run.values(good=good, letters=letters)
    assert sorted(found) == [1, 2]
    assert sorted(failed) == [([""], TimeoutError), (["ccc"], TimeoutError)]
