"""What an engine's handler answers in its host when the host is of no more use."""

from __future__ import annotations

import asyncio

import cloudpickle
import pytest

from headrace import DeviceLostError
from headrace.hosts.provider import HostFailure
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment
from headrace.runtime.engines import EngineRequestHandler
from headrace.runtime.messages import Done, EngineRequest, Raised
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, prepare
from toy_engine import Engine


@pytest.fixture
def answer():
    """Has a new engine answer examples, each with a time limit."""
    handlers = []

    def answer(act, *examples):
        spec = prepare(Engine(act), InferenceRequest(isolate=True, timeout_secs=0.05))
        handlers.append(cloudpickle.loads(cloudpickle.dumps(EngineRequestHandler(spec, ONLY))))
        page = Segment.create(0, Progress.SIZE)
        progress = Progress(page.memory)

        async def all_of_them():
            return [await handlers[-1].answer(EngineRequest(None), [one], progress)() for one in examples]

        return asyncio.run(all_of_them())

    yield answer
    for handler in handlers:
        handler.close()


@pytest.mark.parametrize("ends", ["hangs", "loses its device"])
def test_host_whose_engine_is_lost_is_of_no_more_use(answer, ends):
    async def act(example, engine):
        if ends == "hangs":
            await asyncio.sleep(1000)
        raise DeviceLostError("gone")

    [lost] = answer(act, 13)
    assert (type(lost.head), lost.is_last) == (HostFailure, True)
    assert (lost.head.timed_out, lost.head.device_lost) == (ends == "hangs", ends != "hangs")


def test_request_that_fails_costs_no_host(answer):
    async def act(example, engine):
        if example == 1:
            raise ValueError(example)
        return example

    found = answer(act, 0, 1)
    assert [(type(one.head), one.is_last) for one in found] == [(Done, False), (Raised, False)]
