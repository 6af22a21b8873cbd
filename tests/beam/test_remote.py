"""Remote handlers in a pipeline: outputs keep their elements' keys, failures are dead letters, metrics are Beam's."""

from __future__ import annotations

import asyncio

from headrace.beam import ElementFailure, KeyedModelHandler, RemoteModelHandler
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
