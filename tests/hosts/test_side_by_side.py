"""Whose requests a host answers side by side at a time."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue

import pytest

from headrace.hosts.client import client_of, first_call_of
from headrace.hosts.side_by_side import ALL_CLIENTS, SideBySide
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment
from waiting import wait_until

ALONE = ALL_CLIENTS + 1


class Table:
    """Notes who has a slot, and whose the host is."""

    def __init__(self):
        self.notes = []
        self.shared = SideBySide(self, 3, None)
        self.inside = []
        self.tasks = {}

    def begin(self, call):
        """As ``Progress.begin``."""
        self.notes.append(client_of(call))

    async def enter(self, name, owner):
        async with self.shared.slot(owner):
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


def test_client_is_alone_once_the_host_is_empty():
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


@pytest.mark.parametrize("is_last", [True, False])
def test_host_that_is_lost_to_one_client_is_not_the_next_ones(is_last):
    """The others read on the page who is to blame, when the host is killed a moment later."""

    async def answer():
        return "answer"

    page, sent = Segment.create(0, Progress.SIZE), SimpleQueue()
    progress = Progress(page.memory)
    shared = SideBySide(progress, 3, 1.0)
    shared.start()
    try:
        for client in (1, 2):
            send = lambda response, client=client: sent.put(client) or (client == 1 and is_last)  # noqa: E731 - one line
            shared.begin(first_call_of(client), answer, send, exclusive=True)
        assert [sent.get(timeout=60) for _ in range(2)] == [1, 2]
        assert wait_until(lambda: client_of(progress.read().call) == (1 if is_last else ALL_CLIENTS))
    finally:
        shared.close()
