"""One engine for all worker processes of the machine: who dies costs the others nothing, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest

from headrace import PlacementConfig
from headrace.core.errors import HostDiedError
from headrace.core.events import HostLost, ModelLoaded
from headrace.machine.status import machine_status
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from toy_engine import LONG_SECS, Engine, die, exists, stuck, where
from toy_hosts import has_ended
from toys import run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("runtime", "census", "requests_end")


class Noting(list):
    """An engine; its requests leave files, from which processes can tell how far they have come."""

    def __init__(self, folder):
        self.folder = folder
        self.is_first = not (folder / "loaded").exists()
        self.note("loaded")

    def note(self, what):
        (self.folder / str(what)).touch()

    async def wait_for(self, what):
        await exists(self.folder / str(what))


def spec_of(act, load=os.getpid, max_concurrent=256, **request):
    engine = Engine(act, load, large_model=True, max_concurrent=max_concurrent)
    return catching(prepare(engine, InferenceRequest(**request)), Exception)


async def only_later(example, engine):
    """Another engine than the first one answers; that one hangs."""
    if engine.is_first:
        engine.note(f"begun {example}")
        await asyncio.sleep(1000)
    return os.getpid()


def test_engine_serves_all_processes(opened, worker_process):
    spec = spec_of(where)
    here, there = opened(spec), worker_process(spec)
    [(engine, host)] = run(here, [1])
    found = there.run([1, 2, 3])
    assert set(found.good) == {(engine, host)}
    assert engine == host not in (os.getpid(), there.number)
    assert not found.of(ModelLoaded)
    there.close()
    assert run(here, [1]) == [(engine, host)]


@pytest.mark.large
def test_engine_is_given_as_many_requests_as_it_takes_by_all_processes_together(worker_process):
    class Counting:
        most = now = 0

    async def act(example, engine):
        engine.now += 1
        engine.most = max(engine.most, engine.now)
        for _ in range(20):
            await asyncio.sleep(0.001)
        engine.now -= 1
        return engine.most

    spec = spec_of(act, Counting, max_concurrent=4)
    workers = [worker_process(spec) for _ in range(2)]
    for worker in workers:
        worker.begin(range(50))
    assert all(max(worker.outcomes().good) == 4 for worker in workers)


@pytest.mark.large
def test_requests_of_a_killed_worker_are_dropped_and_others_go_on(tmp_path, worker_process):
    async def act(example, engine):
        try:
            if example >= 100:
                engine.note(f"begun {example}")
                await asyncio.sleep(1000)
            await engine.wait_for("dropped 102")
        except asyncio.CancelledError:
            engine.note(f"dropped {example}")
            raise
        return example

    spec = spec_of(act, partial(Noting, tmp_path))
    victim, other = worker_process(spec), worker_process(spec)
    other.begin(range(3))
    victim.begin(range(100, 103))
    assert wait_until(lambda: len(list(tmp_path.glob("begun*"))) == 3)
    victim.process.kill()
    found = other.outcomes()
    assert (found.good, found.dead, found.of(HostLost)) == ([0, 1, 2], {}, [])
    assert wait_until(lambda: len(list(tmp_path.glob("dropped*"))) == 3)


@pytest.mark.large
def test_worker_that_is_stopped_while_it_has_the_engine_alone_holds_up_nobody_for_long(tmp_path, worker_process):
    async def act(example, engine):
        if example == 13 and not (tmp_path / "died").exists():
            engine.note("died")
            die()
        if example == 13:
            engine.note("alone")
            await engine.wait_for("stopped")
        return example

    stopped, other = [worker_process(spec) for spec in [spec_of(act, partial(Noting, tmp_path))] * 2]
    assert other.run([1]).good == [1]
    stopped.begin([13])
    assert wait_until((tmp_path / "alone").exists)
    os.kill(stopped.number, signal.SIGSTOP)
    try:
        (tmp_path / "stopped").touch()
        assert other.run([2]).good == [2]
    finally:
        os.kill(stopped.number, signal.SIGCONT)
    assert stopped.outcomes().good == [13]


@pytest.mark.large
def test_worker_that_reads_nothing_holds_up_nobody(worker_process):
    async def act(example, engine):
        return bytes(5_000_000) if example < 0 else example

    spec = spec_of(act)
    stopped, other = worker_process(spec), worker_process(spec)
    assert stopped.run([1]).good == [1]
    stopped.begin([-1] * 20)
    os.kill(stopped.number, signal.SIGSTOP)
    try:
        assert other.run(range(50)).good == [*range(50)]
    finally:
        os.kill(stopped.number, signal.SIGCONT)
    assert len(stopped.outcomes().good) == 20


@pytest.mark.large
@pytest.mark.parametrize("victim", ["host", "manager"])
def test_host_or_manager_that_is_killed_costs_no_process_anything(tmp_path, worker_process, victim):
    workers = [worker_process(spec) for spec in [spec_of(only_later, partial(Noting, tmp_path))] * 3]
    for place, worker in enumerate(workers):
        worker.begin(range(10 * place, 10 * place + 5))
    assert wait_until(lambda: len(list(tmp_path.glob("begun*"))) == 15)
    [manager] = machine_status().managers
    [host] = manager.models[0].hosts
    os.kill(host.process if victim == "host" else manager.process.process, signal.SIGKILL)
    found = [worker.outcomes() for worker in workers]
    assert [len(one.good) for one in found] == [5, 5, 5]
    assert wait_until(lambda: has_ended(host.process))
    assert len({number for one in found for number in one.good} - {host.process}) == 1
    if victim == "host":
        assert sum(len(one.of(ModelLoaded)) for one in found) == 2  # the first, and the one that replaced it
    for worker in workers:
        worker.close()


@pytest.mark.large
def test_each_process_finds_its_own_elements_that_kill_the_host(worker_process):
    async def act(example, engine):
        await asyncio.sleep(0.001 * (example % 7))
        if example % 30 == 13:
            die()
        return example

    spec = spec_of(act)
    workers = [worker_process(spec) for _ in range(4)]
    for worker in workers:
        worker.begin(range(60))
    found = [worker.outcomes() for worker in workers]
    assert [one.dead for one in found] == [{13: HostDiedError, 43: HostDiedError}] * 4
    assert [len(one.good) for one in found] == [58] * 4


@pytest.mark.large
@pytest.mark.parametrize("how", ["holds the thread", "answers nobody"])
def test_request_that_hangs_costs_other_processes_nothing(worker_process, how):
    spec = spec_of(partial(stuck, which=13, how=how), list, timeout_secs=LONG_SECS)
    guilty, other = worker_process(spec), worker_process(spec)
    assert guilty.run([1]).good == other.run([1]).good == [1]
    guilty.begin([13])
    found = [other.run([number]) for number in range(100, 110)]
    assert [(one.good, one.dead) for one in found] == [([number], {}) for number in range(100, 110)]
    assert guilty.outcomes().dead == {13: TimeoutError}


def test_engine_that_lingers_ends_before_another_is_loaded():
    found = []
    for linger_secs in (1000, 0):
        worker = open_worker(spec_of(where, placement=PlacementConfig("machine", linger_secs=linger_secs)))
        found += run(worker, [1])
        assert linger_secs or has_ended(found[0][0])
        worker.close()
    assert found[0] != found[1]
