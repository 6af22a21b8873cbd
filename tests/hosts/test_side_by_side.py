"""Whose requests a host answers side by side at a time."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import closing
from queue import SimpleQueue

import cloudpickle
import pytest

from headrace.hosts.client import ModelHosts, client_of, first_call_of
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.host import Response
from headrace.hosts.provider import Exclusive
from headrace.hosts.side_by_side import ALL_CLIENTS, SideBySide
from headrace.ipc.codec import encode
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment
from toy_hosts import Toy, double, forbidden
from toys import Unloadable
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


class AnswersLater(Toy):
    """Does what it is told, side by side."""

    def answer(self, head, rows, progress):
        if self.side_by_side is None:
            self.side_by_side = SideBySide(progress, 3, None)
            self.side_by_side.start()

        async def later():
            return Response("done", pickle.loads(head)(rows, self))

        return later

    def close(self):
        self.side_by_side.close()


@pytest.mark.parametrize("exclusive", [False, True])
def test_every_request_has_its_answer_whatever_raises(exclusive, census):
    def asked(work, row):
        request = cloudpickle.dumps(work), [row]
        return (
            hosts.submit(Exclusive(), [b"".join(encode(*request).content())]) if exclusive else hosts.submit(*request)
        )

    provider = ForkServerClient(cloudpickle.dumps(AnswersLater()), "later")
    with closing(ModelHosts(provider, "later", 60.0, side_by_side=True)) as hosts:
        calls = [asked(double, 3), asked(forbidden, 3), asked(double, Unloadable()), asked(double, None)]
        assert wait_until(lambda: all(call.connection.is_ready(call) for call in calls))
        found = [hosts.result(call) for call in calls]
    assert (found[0].head, found[0].rows) == ("done", [6])
    assert [one.head[0] for one in found[1:]] == ["unreadable"] * 3
    assert [one.head[1].partition("(")[0] for one in found[1:]] == ["PermissionError", "ValueError", "TypeError"]
