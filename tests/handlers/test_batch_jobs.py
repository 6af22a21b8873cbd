"""Requests are answered by a Batch API in this process, which fails as providers do."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from headrace.handlers import batch_jobs, batch_store
from headrace.handlers.batch_jobs import BatchJobs, BatchUnfinishedError
from headrace.handlers.batch_store import BatchStore, Line, Sent
from http_endpoint import StatusError

SOON = 0.2
LATER = 600.0


class Api:
    """Answers every request, unless ``wrong`` has an error for what is done: "send" or a batch's id."""

    most_requests = 100
    most_bytes = 1_000_000

    def __init__(self):
        self.batches = []
        self.tokens = []
        self.wrong = {}
        self.found = [""]
        """What is found, one after the other; the last again and again."""

    async def prepare(self, token, requests):
        return requests

    async def send(self, token, requests):
        if "send" in self.wrong:
            raise self.wrong.pop("send")
        self.batches.append(list(requests))
        self.tokens.append(token)
        return str(len(self.batches))

    async def find(self, batch):
        if batch.token in self.tokens:
            return str(self.tokens.index(batch.token) + 1)
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]

    async def collect(self, remote):
        if remote in self.wrong:
            raise self.wrong.pop(remote)
        return [Line(name, 200, "{}") for name in self.batches[int(remote) - 1]], "completed"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(batch_jobs, "FIRST_POLL_SECS", 0.01)
    monkeypatch.setattr(batch_jobs, "LONGEST_POLL_SECS", 0.02)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def ask(api, tmp_path):
    """Asks for answers to requests with these numbers."""

    def begin(*numbers, wait=LATER):
        jobs = BatchJobs("Handler", str(tmp_path), wait, "there", api, error=StatusError)
        return jobs.answers([{"n": number} for number in numbers])

    return begin


@pytest.fixture
def announce(tmp_path):
    """Notes a batch of requests with these numbers, as a process that is killed while it sends it; gives their ids."""

    def note(*numbers):
        jobs = BatchJobs("Handler", str(tmp_path), LATER, "there", None, error=StatusError)
        ids = [jobs._id_of({"n": number}) for number in numbers]
        BatchStore(str(tmp_path)).announce("token", ids)
        return ids

    return note


def news(answers):
    assert all(isinstance(one, Line) for one in answers)
    return [one.is_new for one in answers]


def test_answers_of_a_try_that_failed_cost_in_the_next(ask, api):
    api.most_requests = 1
    api.wrong["2"] = ValueError("garbage")
    with pytest.raises(ValueError, match="garbage"):
        asyncio.run(ask(1, 2))
    assert news(asyncio.run(ask(1, 2))) == [True, True]
    assert news(asyncio.run(ask(1, 2))) == [False, False]


def test_wait_for_what_may_have_arrived_holds_up_nobody_else(ask, announce, api):
    async def both():
        waiting = asyncio.ensure_future(ask(1))
        try:
            await asyncio.sleep(0.05)
            return await ask(2)
        finally:
            waiting.cancel()

    announce(1)
    api.found = [None]
    assert news(asyncio.run(both())) == [True]


def test_what_is_known_is_answered_although_the_rest_is_not(ask, announce, api):
    asyncio.run(ask(1))
    announce(2)
    api.found = [None]
    known, unknown = asyncio.run(ask(1, 2, wait=SOON))
    assert news([known]) == [False]
    assert isinstance(unknown, BatchUnfinishedError)
    assert "it is not known yet whether the batch with this request has arrived" in str(unknown)
    assert len(api.batches) == 1


def test_batch_that_is_listed_late_is_not_sent_again(ask, announce, api):
    api.batches.append(announce(1))
    api.found = ["", "", "", "1"]
    assert news(asyncio.run(ask(1))) == [True]
    assert len(api.batches) == 1


def test_batch_that_is_not_known_at_once_is_waited_for(ask, api):
    api.wrong["1"] = StatusError(404, {})
    assert news(asyncio.run(ask(1))) == [True]
    assert len(api.batches) == 1


def test_lock_that_another_process_keeps_ends_the_wait_in_time(ask, tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / "lock", thread_local=False):
        (answer,) = asyncio.run(ask(1, wait=SOON))
    assert "another process keeps" in str(answer)


@pytest.mark.parametrize("status", [429, 529])
def test_batch_that_was_not_even_looked_at_is_not_looked_for(status, ask, api):
    api.found = [None]
    api.wrong["send"] = StatusError(status, {})
    with pytest.raises(StatusError):
        asyncio.run(ask(1))
    assert news(asyncio.run(ask(1))) == [True]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", ["announced", "look_up", "announce", "send", "sent", "end", "lines", "count"])
def test_process_that_is_killed_anywhere_loses_nothing_and_pays_once(step, is_done, ask, api, monkeypatch):
    def dies(real):
        def call(*args):
            if is_done:
                real(*args)
            raise Killed

        async def call_async(*args):
            if is_done:
                await real(*args)
            raise Killed

        return call_async if step == "send" else call

    monkeypatch.setattr(batch_jobs, "ARRIVING_SECS", 0.05)
    with monkeypatch.context() as patch:
        place = Api if step == "send" else BatchStore
        patch.setattr(place, step, dies(getattr(place, step)))
        with pytest.raises(Killed):
            asyncio.run(ask(1, 2))
    assert news(asyncio.run(ask(1, 2))) == [not (step == "count" and is_done)] * 2
    assert len(api.batches) == 1


@pytest.fixture
def store(tmp_path):
    return BatchStore(str(tmp_path))


def test_what_is_looked_up_is_of_one_moment(store, tmp_path, monkeypatch):
    """A batch that ends meanwhile would be neither answered nor running, and its requests sent again."""
    for name in "ab":
        store.announce(name, [name])
        store.sent(name, name)
    store.end("a", [Line("a", 200, "of a")])

    def read(*row):
        other = sqlite3.connect(tmp_path / "batches.db", timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        return Line(*row)

    monkeypatch.setattr(batch_store, "Line", read)
    assert store.look_up(["a", "b"]) == ([Line("a", 200, "of a")], [Sent("b", "b")], {"a", "b"})
