"""Whose requests an engine has at a time."""

from __future__ import annotations

import asyncio

from headrace.runtime.engine_host import ALL_CLIENTS, EngineRoom

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
