"""Deaths around a model that several workers share: the others carry on, and nothing is left at the end."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.large

WORKERS = 3
HELD = {"load": 1, "export": 1, "attach": 1, "batch": 1, "idle": WORKERS}
"""How many processes there are, at least, that are held at a moment."""


def kill(*processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("kind", "moment"), [*(("mapped", moment) for moment in HELD), ("copies", "load"), ("copies", "batch")]
)
def test_a_killed_manager_fails_no_worker(machine, kind, moment):
    """Workers that have mapped the model need no new manager."""
    spec = machine.spec(kind)
    machine.start(spec, moment)
    machine.held(HELD[moment])
    kill(machine.manager())
    machine.go()
    machine.end()
    machine.assert_vacated_by_the_next(spec)


@pytest.mark.parametrize(
    ("kind", "moment"), [("loader", "load"), ("loader", "export"), ("timeout", "export"), ("copies", "load")]
)
def test_a_killed_loader_fails_no_worker(machine, census, kind, moment):
    machine.start(machine.spec(kind), moment)
    [loader] = machine.held()
    assert census.hosts(machine.manager()) == [loader]
    kill(loader)
    machine.go()
    machine.end()
    assert len(machine.notes("load")) == 2
    machine.assert_vacated()


@pytest.mark.parametrize("moment", ["batch", "idle"])
def test_killed_machine_hosts_fail_no_worker(machine, census, moment):
    machine.start(machine.spec("copies"), moment)
    machine.held(HELD[moment])
    hosts = census.hosts(machine.manager())
    assert hosts
    kill(*hosts)
    machine.go()
    machine.end()
    assert len(machine.notes("load")) == 1
    machine.assert_vacated()


@pytest.mark.parametrize("whom", ["fork_servers", "hosts"])
@pytest.mark.parametrize("moment", ["batch", "idle"])
def test_a_killed_host_of_a_worker_is_replaced(machine, census, moment, whom):
    """The next host has the model that the machine keeps."""
    machine.start(machine.spec("timeout"), moment)
    machine.held(WORKERS)
    for worker in machine.pids():
        [victim] = getattr(census, whom)(worker)
        kill(victim)
    machine.go()
    machine.end()
    assert len(machine.notes("load")) == 1
    machine.assert_vacated()


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("mapped", "load"),
        ("copies", "load"),
        ("mapped", "idle"),
        *((kind, "batch") for kind in ("mapped", "loader", "timeout", "copies")),
    ],
)
def test_a_killed_worker_fails_no_other(machine, kind, moment):
    """One of three, which may be the one that had started the manager."""
    machine.start(machine.spec(kind), moment)
    machine.held(HELD[moment])
    if moment != "idle":
        machine.leased()  # the model goes with its last user, and its load with the last that waits
    loads = 1 + (kind == "mapped" and moment == "load")  # the next one loads again
    victim = machine.held()[0] if loads == 2 else machine.pids()[0]
    kill(victim)
    machine.go()
    machine.end(killed=[victim])
    assert len(machine.notes("load")) == loads
    machine.assert_vacated()


@pytest.mark.parametrize("kind", ["mapped", "copies"])
def test_all_processes_killed_at_once_do_not_stop_the_next_workers(machine, census, kind):
    """Files may remain; the next workers start nevertheless, and remove them."""
    spec = machine.spec(kind)
    machine.start(spec, "idle")
    machine.held(WORKERS)
    everybody = list(census.processes())
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in everybody:
            os.kill(process, number)
    machine.end(killed=machine.pids())
    machine.go()
    machine.assert_vacated_by_the_next(spec)
