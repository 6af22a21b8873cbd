"""Several copies of an engine: all get requests, each prefix its copy; one that is lost costs no element."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections import Counter

import pytest

from headrace import predict
from headrace.core.errors import HostDiedError
from headrace.core.events import HostLost, ModelLoaded
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from http_endpoint import events_and_outcomes
from toy_engine import Engine, dead, die, double, where
from toy_hosts import has_ended
from toys import run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("runtime", "census", "requests_end")


class Prompted(Engine):
    """Its examples are prompts."""

    def prefix(self, example):
        return example


async def process(example, engine):
    await asyncio.sleep(0.001)
    return os.getpid()


def dying_once(folder, number, example, engine):
    """Notes that the engine was given the example; ends the process of the first that gets a certain one."""
    with (folder / f"{example} {os.getpid()}").open("a") as file:
        file.write(".")
    if example == number and not (folder / "died").exists():
        (folder / "died").write_text(str(os.getpid()))
        die()


def test_each_copy_is_given_as_many_requests_as_one_engine_and_its_share_of_gpus_and_cores(tmp_path, monkeypatch):
    async def act(example, engine):
        (tmp_path / f"{example}").touch()
        while len(list(tmp_path.iterdir())) < 10:
            await asyncio.sleep(0.002)
        return engine

    def load():
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = str(max(1, len(os.sched_getaffinity(0)) // 2))
    found = Counter(predict(Engine(act, load, model_copies=2, max_concurrent=5), range(10)))
    assert found == {("0,1", cores): 5, ("2,3", cores): 5}


def test_prompts_that_begin_alike_meet_in_one_copy(close_later):
    async def act(prompt, engine):
        has_it = prompt[:640] in engine
        engine.add(prompt[:640])
        await asyncio.sleep(0.001)
        return os.getpid(), has_it

    worker = close_later(open_worker(prepare(Prompted(act, set, model_copies=2), InferenceRequest())))
    documents = [f"{document:04}" * 160 for document in range(8)]
    found = [run(worker, [one + "?" * question for one in documents]) for question in range(6)]
    assert [sum(has_it for _, has_it in one) for one in found] == [0, 8, 8, 8, 8, 8]
    assert len({host for one in found for host, _ in one}) == 2


def test_copy_that_is_killed_costs_no_element_and_is_replaced(tmp_path):
    async def act(example, engine):
        dying_once(tmp_path, 150, example, engine)
        await asyncio.sleep(0.001)
        return example, os.getpid()

    events, found = events_and_outcomes(Engine(act, model_copies=2, max_concurrent=20), range(300))
    assert sorted(example for example, _ in found) == [*range(300)]
    assert len(events.of(HostLost)) == 1
    assert len(events.of(ModelLoaded)) == 2
    killed = int((tmp_path / "died").read_text())
    given = {tuple(map(int, file.name.split())): file.read_text() for file in tmp_path.glob("* *")}
    assert {one for one in given if one[1] != killed} == {one for one in found if one[1] != killed}
    assert set(given.values()) == {"."}
    assert len({host for _, host in found} - {killed}) == 2


def test_element_that_kills_its_copy_is_the_only_one_that_fails():
    async def act(example, engine):
        if example == 13:
            die()
        return await double(example, engine)

    _, found = events_and_outcomes(Engine(act, model_copies=3), range(60))
    assert dead(found) == {13: HostDiedError}
    assert sorted(one for one in found if isinstance(one, int)) == [2 * n for n in range(60) if n != 13]


def test_other_copies_do_what_one_cannot_that_does_not_start_again(tmp_path):
    def load():
        (tmp_path / f"loaded {os.getpid()}").touch()
        if len(list(tmp_path.glob("loaded*"))) > 2:
            raise LookupError("gone")

    async def act(example, engine):
        dying_once(tmp_path, 50, example, engine)
        await asyncio.sleep(0.001)
        return example

    events, found = events_and_outcomes(Engine(act, load, model_copies=2, max_concurrent=8), range(100))
    assert sorted(found) == [*range(100)]
    assert len(events.of(HostLost)) == 1


def test_copy_that_starts_again_does_what_another_cannot(tmp_path):
    """Both are lost at once."""
    refused = tmp_path / "refused"

    def load():
        (tmp_path / f"loaded {os.getpid()}").touch()
        if len(list(tmp_path.glob("loaded *"))) <= 2:
            return "lost"
        try:
            refused.mkdir()
        except FileExistsError:
            time.sleep(0.5)  # the first one's requests come before this one is there again
            return "good"
        raise LookupError("gone")

    async def act(example, engine):
        if engine == "lost":
            (tmp_path / f"given {os.getpid()}").touch()
            while len(list(tmp_path.glob("given *"))) < 2:
                await asyncio.sleep(0.001)
            die()
        return example

    assert sorted(predict(Engine(act, load, model_copies=2), range(20))) == [*range(20)]


def test_copy_that_is_killed_while_it_is_idle_is_started_again(close_later):
    worker = close_later(open_worker(catching(prepare(Engine(process, model_copies=2), InferenceRequest()), Exception)))
    killed, _ = sorted(set(run(worker, range(40))))
    os.kill(killed, signal.SIGKILL)
    assert wait_until(lambda: has_ended(killed))
    found = run(worker, range(40))
    assert len(found) == 40
    assert wait_until(lambda: len(set(run(worker, range(40))) - {killed}) == 2)


@pytest.mark.large
def test_worker_processes_share_the_copies(worker_process):
    spec = catching(prepare(Engine(where, model_copies=2), InferenceRequest()), Exception)
    workers = [worker_process(spec) for _ in range(2)]
    found = [worker.run(range(40)) for worker in workers]
    assert set(found[0].good) == set(found[1].good)
    assert len(set(found[0].good)) == 2


@pytest.mark.parametrize("dies", [False, True])
def test_hosts_end_although_an_error_is_kept_that_says_why(dies, tmp_path):
    """Also where none of the copies starts again."""

    def load():
        (tmp_path / str(os.getpid())).touch()
        if len(list(tmp_path.iterdir())) > 2:
            raise LookupError("gone")

    async def act(example, engine):
        if dies:
            die()
        raise LookupError("refused")

    gc.disable()
    try:
        with pytest.raises((LookupError, HostDiedError), match=r"gone|was killed" if dies else "refused") as kept:
            list(predict(Engine(act, load, model_copies=2), range(1 if dies else 100)))
        assert all(wait_until(lambda host=host: has_ended(int(host.name))) for host in tmp_path.iterdir())
        assert kept.value.__traceback__ is not None
    finally:
        gc.enable()
