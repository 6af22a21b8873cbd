"""The status shows what there is, in time whether or not managers answer; only what has no owner is cleaned up."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import threading

import numpy
import pytest

import headrace
from headrace.hosts.system import processes
from headrace.ipc.channel import Channel
from headrace.machine import status as census_module
from headrace.machine.discovery import ManagerEndpoint, find_or_launch
from headrace.machine.lease import manager_name
from headrace.machine.status import clean, machine_status
from toys import Acting

pytestmark = pytest.mark.usefixtures("census")


def unmappable():
    return Acting(load=threading.Lock, max_batch_size=1)


def mappable():
    """Has 8 MB, and needs no imports to speak of."""
    return Acting(load=functools.partial(numpy.ones, 1_000_000), max_batch_size=1)


@pytest.fixture
def shared(directory, wait_until):
    """Begins to predict with models of the machine's; lets go of them in the end."""
    running = []

    def begin(handler, element, **options):
        options = {"placement": "machine", **options}
        running.append(headrace.predict(handler, iter([element] * 100_000), ordered=False, **options))
        next(running[-1])

    yield begin
    for predictions in running:
        predictions.close()
    assert wait_until(lambda: not any(machine_status().managers))


@pytest.fixture
def manager_that(directory):
    """Makes a thread a manager that does something with each connection."""
    endpoints = []

    def serve(endpoint, work):
        while True:
            try:
                work(Channel(endpoint.accept()))
            except OSError:
                return

    def make(work):
        def launch(lock, listening):
            endpoints.append(ManagerEndpoint(directory, "m", os.dup(lock), os.dup(listening)))

        find_or_launch(directory, "m", launch).close()
        endpoints[-1].accept().close()
        threads.append(threading.Thread(target=serve, args=[endpoints[-1], work]))
        threads[-1].start()

    threads = []
    yield make
    for endpoint in endpoints:
        endpoint.remove()
    for thread in threads:
        thread.join(60)


@pytest.mark.large
def test_status_shows_mapped_models_and_models_in_hosts(shared):
    shared(mappable(), 1)
    shared(unmappable(), 1)
    state = machine_status()
    (manager,) = state.managers
    mapped, hosted = manager.models
    assert (manager.endpoint, manager.clients) == (manager_name(), 2)
    assert manager.process.process in set(processes())
    assert 0 < manager.process.private <= manager.process.pss
    assert (mapped.name, mapped.state, mapped.mapped, mapped.reason) == ("Acting", "ready", True, "")
    assert (mapped.clients, mapped.hosts, mapped.linger_secs) == (1, (), 0)
    assert 8_000_000 <= mapped.nbytes < 9_000_000
    assert (hosted.state, hosted.mapped, hosted.clients) == ("ready", False, 1)
    assert "lock" in hosted.reason
    (host,) = hosted.hosts
    assert host.private > 0
    assert {helper.process for helper in manager.helpers}.isdisjoint({host.process, manager.process.process})
    assert (state.silent, state.stale) == ((), ())


def test_status_shows_a_stopped_manager_and_finds_and_removes_what_a_killed_one_has_left(
    shared, directory, monkeypatch, wait_until
):
    shared(mappable(), 1)
    (manager,) = machine_status().managers
    os.kill(manager.process.process, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(census_module, "_TIMEOUT_SECS", 0.3)
        state = machine_status()
    os.kill(manager.process.process, signal.SIGKILL)
    assert [(one.endpoint, "has not answered" in one.problem) for one in state.silent] == [(manager_name(), True)]
    assert (state.managers, state.stale) == ((), ())
    assert wait_until(lambda: machine_status().stale == (manager_name(),))
    state = machine_status()
    assert (state.managers, state.silent) == ((), ())
    assert state.leftovers >= 1
    clean(state)
    assert not os.path.exists(directory)
    assert machine_status().stale == ()


def test_processes_of_another_namespace_are_not_measured(manager_that):
    """There their numbers are others' than here."""

    def elsewhere(channel):
        channel.send("welcome")
        channel.receive()
        model = dict.fromkeys(("nbytes", "mapped", "reason", "clients", "linger_secs"), 0)
        model |= {"name": "m", "state": "ready", "hosts": [os.getpid()]}
        channel.send({"process": os.getpid(), "namespace": "1", "clients": 1, "models": [model]})
        channel.close()

    manager_that(elsewhere)
    (manager,) = machine_status().managers
    (model,) = manager.models
    assert (manager.process.process, manager.process.pss, manager.helpers) == (os.getpid(), None, ())
    assert [(host.process, host.private) for host in model.hosts] == [(os.getpid(), None)]


@pytest.mark.parametrize("answer", [{"models": ["what?"]}, None], ids=["of another kind", "none"])
def test_status_shows_a_manager_of_another_version(manager_that, answer):
    def work(channel):
        channel.send("welcome")
        channel.receive()
        if answer is not None:
            channel.send(answer)
        channel.close()

    manager_that(work)
    state = machine_status()
    (silent,) = state.silent
    assert silent.endpoint == "m"
    assert "is it of another version of Headrace?" in silent.problem
    assert state.stale == ()


def test_status_shows_a_manager_that_does_not_listen_yet_as_silent(directory, monkeypatch):
    monkeypatch.setattr(census_module, "_TIMEOUT_SECS", 0.3)
    with open(f"{directory}/m.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = machine_status()
    assert [one.endpoint for one in state.silent] == ["m"]
    assert state.stale == ()
    assert machine_status().stale == ("m",)


def test_status_shows_hosts_of_a_single_process(shared):
    shared(unmappable(), 1, placement="process", isolate=True)
    state = machine_status()
    assert state.managers == ()
    assert len(state.own_hosts[os.getpid()]) == 2  # the host, and what has forked it


def test_status_shows_hosts_whose_owner_was_killed(directory, orphan, wait_until):
    assert wait_until(lambda: orphan.pid in [one.process for one in machine_status().orphans])
    state = machine_status()
    assert orphan.pid not in {host.process for hosts in state.own_hosts.values() for host in hosts}
    assert state.leftovers >= 1
    clean(state)
    assert orphan.wait(60) == -signal.SIGKILL
    assert orphan.pid not in [one.process for one in machine_status().orphans]
