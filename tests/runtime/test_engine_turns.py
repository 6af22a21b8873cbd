"""The turns in which clients have an engine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from headrace.runtime.engine_host import ALL_CLIENTS, EngineTurns

ONE, OTHER = ALL_CLIENTS + 1, ALL_CLIENTS + 2


class Table:
    """Notes who has a place, and whose the engine is."""

    def __init__(self, limit=3):
        self.notes = []
        self.turns = EngineTurns(limit, self.notes.append)
        self.inside = []
        self.tasks = {}

    async def enter(self, name, context):
        async with context:
            self.inside.append(name)
            try:
                await asyncio.Future()
            finally:
                self.inside.remove(name)

    async def come(self, name, context):
        self.tasks[name] = asyncio.create_task(self.enter(name, context))
        await self.settled()

    async def leave(self, name):
        self.tasks.pop(name).cancel()
        await self.settled()

    async def settled(self):
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def at_a_table():
    """Runs a coroutine function with a table; ends what is left."""

    def play(game, limit=3):
        async def whole():
            table = Table(limit)
            async with AsyncExitStack() as stack:
                stack.callback(lambda: [task.cancel() for task in table.tasks.values()])
                await game(table, table.turns)
            return table.notes

        return asyncio.run(whole())

    return play


def test_client_is_alone_once_the_engine_is_empty(at_a_table):
    async def game(table, turns):
        await table.come("a", turns.shared_slot(OTHER))
        await table.come("alone", turns.exclusive(ONE))
        await table.come("b", turns.shared_slot(OTHER))
        assert table.inside == ["a"]
        await table.leave("a")
        assert table.inside == ["alone"]
        for name in "cdefg":
            await table.come(name, turns.shared_slot(ONE))
        assert table.inside == ["alone", *"cdefg"]
        for name in ["c", "d", "e", "f", "g", "alone"]:
            await table.leave(name)
        assert table.inside == ["b"]

    assert at_a_table(game) == [ONE, ALL_CLIENTS]


def test_client_that_makes_no_use_of_being_alone_loses_it(at_a_table, monkeypatch):
    async def have_alone(turns):
        async with turns.exclusive(ONE):
            await turns.idle()

    async def game(table, turns):
        turn = asyncio.create_task(have_alone(turns))
        await table.settled()
        await table.come("a", turns.shared_slot(ONE))
        await table.come("b", turns.shared_slot(OTHER))
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert (turn.done(), table.inside) == (False, ["a"])
        await table.leave("a")
        await turn
        await table.settled()
        assert table.inside == ["b"]

    monkeypatch.setattr("headrace.runtime.engine_host._IDLE_SECS", 0.01)
    assert at_a_table(game) == [ONE, ALL_CLIENTS]


def test_client_that_leaves_before_its_turn_keeps_nothing(at_a_table):
    async def game(table, turns):
        await table.come("a", turns.shared_slot(OTHER))
        await table.come("alone", turns.exclusive(ONE))
        await table.leave("alone")
        for name in "bc":
            await table.come(name, turns.shared_slot(OTHER))
        assert table.inside == ["a", "b", "c"]

    assert at_a_table(game) == []
