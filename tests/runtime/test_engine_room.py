"""Whose requests an engine has at a time."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue

import pytest

from headrace import DeviceLostError
from headrace.core.event_loop import close_loop
from headrace.hosts.client import client_of, first_call_of
from headrace.ipc.codec import Decoded, encode
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment
from headrace.runtime.engine_host import ALL_CLIENTS, EngineRoom, RunningEngine
from headrace.runtime.messages import EngineRequest
from toy_engine import Engine

ALONE = ALL_CLIENTS + 1


class Table:
    """Notes who has a place, and whose the engine is."""

    def __init__(self, limit=3):
        self.notes = []
        self.room = EngineRoom(limit, self.notes.append)
        self.inside = []
        self.tasks = {}

    async def enter(self, name, owner):
        async with self.room.place(owner):
            self.inside.append(name)
            try:
                await asyncio.Future()
            finally:
                self.inside.remove(name)

    async def come(self, names, owner=ALL_CLIENTS):
        self.tasks |= {name: asyncio.create_task(self.enter(name, owner)) for name in names}
        return await self.settled()

    async def leave(self, names):
        for name in names:
            self.tasks.pop(name).cancel()
        return await self.settled()

    async def settled(self):
        for _ in range(20):
            await asyncio.sleep(0)
        return "".join(self.inside)


def test_client_is_alone_once_the_engine_is_empty():
    async def game():
        table = Table()
        assert await table.come("abcd") == "abc"
        await table.leave("d")
        await table.come("x", ALONE)
        assert await table.come("e") == "abc"
        assert await table.leave("ab") == "c"
        assert await table.leave("c") == "x"
        assert await table.come("vwyz", ALONE) == "xvwyz"
        assert await table.leave("xvwy") == "z"
        assert await table.leave("z") == "e"
        return table.notes

    assert asyncio.run(game()) == [ALONE, ALL_CLIENTS]


def test_client_that_leaves_before_it_is_alone_keeps_nothing():
    async def game():
        table = Table()
        await table.come("a")
        await table.come("x", ALONE)
        await table.leave("x")
        assert await table.come("bc") == "abc"
        return table.notes

    assert asyncio.run(game()) == []


@pytest.mark.parametrize("ends", ["hangs", "loses its device"])
def test_host_that_is_lost_to_one_client_is_not_the_next_ones(ends):
    """The others read on the page who is to blame, when the host is killed a moment later."""

    async def act(example, engine):
        if example == 13 and ends == "hangs":
            await asyncio.sleep(1000)
        if example == 13:
            raise DeviceLostError("gone")
        return example

    page = Segment.create(0, Progress.SIZE)
    progress, answers = Progress(page.memory), SimpleQueue()
    engine = RunningEngine(Engine(act), None, progress, 0.05)
    try:
        for client, example in ((1, 13), (2, 1)):
            request = EngineRequest(is_alone=True), [b"".join(encode(EngineRequest(), [example]).content())], None
            engine.event_loop.call(
                engine.take, first_call_of(client), Decoded(*request), lambda *sent: answers.put(sent)
            )
        assert [client_of(answers.get(timeout=60)[0]) for _ in range(2)] == [1, 2]
        assert client_of(progress.read().call) == 1
    finally:
        close_loop()
