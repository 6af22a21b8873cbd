"""The status shows what there is, in time whether or not managers answer; only what has no owner is cleaned up."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy
import pytest
import sklearn.linear_model

import headrace
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy
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
    """Needs no imports to speak of."""
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
def classifier(tmp_path):
    """A handler of a linear model with 8 MB of weights."""
    model = sklearn.linear_model.LogisticRegression()
    model.classes_, model.coef_, model.intercept_ = numpy.arange(2), numpy.ones((1, 1_000_000)), numpy.zeros(1)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    return SklearnModelHandlerNumpy(str(tmp_path / "model.pkl"), max_batch_size=1)


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
def test_status_shows_mapped_models_and_models_in_hosts(shared, classifier):
    shared(classifier, numpy.ones(1_000_000))
    shared(unmappable(), 1)
    state = machine_status()
    (manager,) = state.managers
    mapped, hosted = manager.models
    assert (manager.endpoint, manager.clients) == (manager_name(), 2)
    assert manager.process.process in set(processes())
    assert 0 < manager.process.private <= manager.process.pss
    assert (mapped.name, mapped.state, mapped.mapped, mapped.reason) == (
        "SklearnModelHandlerNumpy",
        "ready",
        True,
        "",
    )
    assert (mapped.clients, mapped.hosts, mapped.linger_secs) == (1, (), 0)
    assert 8_000_000 <= mapped.nbytes < 9_000_000
    assert (hosted.state, hosted.mapped, hosted.clients) == ("ready", False, 1)
    assert "lock" in hosted.reason
    (host,) = hosted.hosts
    assert host.private > 0
    assert {helper.process for helper in manager.helpers}.isdisjoint({host.process, manager.process.process})
    assert (state.silent, state.stale) == ((), ())


def test_leftovers_of_a_killed_manager_are_found_and_removed(shared, directory, wait_until):
    shared(mappable(), 1)
    (manager,) = machine_status().managers
    os.kill(manager.process.process, signal.SIGKILL)
    assert wait_until(lambda: machine_status().stale == (manager_name(),))
    state = machine_status()
    assert (state.managers, state.silent) == ((), ())
    assert state.leftovers >= 1
    clean(state)
    assert not os.path.exists(directory)
    assert machine_status().stale == ()


def test_status_shows_a_stopped_manager(shared, monkeypatch):
    shared(mappable(), 1)
    (manager,) = machine_status().managers
    os.kill(manager.process.process, signal.SIGSTOP)
    monkeypatch.setattr(census_module, "_TIMEOUT_SECS", 0.3)
    try:
        state = machine_status()
    finally:
        os.kill(manager.process.process, signal.SIGCONT)
    assert [(one.endpoint, "has not answered" in one.problem) for one in state.silent] == [(manager_name(), True)]
    assert (state.managers, state.stale) == ((), ())


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


def of_another_kind(channel):
    channel.send("welcome")
    channel.receive()
    channel.send({"models": ["what?"]})
    channel.close()


def that_does_not_know_the_question(channel):
    channel.send("welcome")
    channel.receive()
    channel.close()


@pytest.mark.parametrize("work", [of_another_kind, that_does_not_know_the_question])
def test_status_shows_a_manager_of_another_version(manager_that, work):
    manager_that(work)
    state = machine_status()
    (silent,) = state.silent
    assert silent.endpoint == "m"
    assert "is it of another version of Headrace?" in silent.problem
    assert state.stale == ()


def test_status_shows_a_manager_that_does_not_listen_yet_as_silent(directory, monkeypatch):
    code = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
input()
"""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, directory + "/m.lock"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        process.stdout.readline()
        monkeypatch.setattr(census_module, "_TIMEOUT_SECS", 0.3)
        state = machine_status()
        process.communicate("end\n")
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
