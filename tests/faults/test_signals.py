"""Signals to owner, fork server and host at any moment: results stay right, and no process is left behind."""

from __future__ import annotations

import os
import signal

import pytest

EXPECTED = [[n, 2 * n] for n in range(24)]
MOMENTS = ["start", "load", "batch", "idle"]
KILL, TERM, SEGV, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP


def named(value):
    return getattr(value, "name", value)


@pytest.mark.large
@pytest.mark.parametrize(
    ("moment", "number"), [*((moment, KILL) for moment in MOMENTS), ("start", TERM), ("batch", TERM)], ids=named
)
def test_a_killed_owner_takes_hosts_and_servers_with_it(start_owner, census, wait_until, moment, number):
    """Three servers end with it, one of them in its own session and one fully detached."""
    owner = start_owner(moment, servers=1).reached()
    assert wait_until(lambda: len(census.servers()) == (0 if moment == "start" else 3))
    assert len(census.fork_servers(owner.pid)) == 1
    os.kill(owner.pid, number)
    owner.process.wait()
    assert wait_until(lambda: not census.processes()), census.processes()


@pytest.mark.parametrize(
    ("moment", "number"), [*((moment, KILL) for moment in MOMENTS[1:]), ("batch", TERM), ("idle", SEGV)], ids=named
)
def test_a_killed_host_is_replaced(start_owner, census, moment, number):
    owner = start_owner(moment).reached()
    [host] = census.hosts(owner.pid)
    os.kill(host, number)
    owner.go()
    assert owner.result() == EXPECTED


@pytest.mark.large
@pytest.mark.parametrize("moment", ["load", "idle"])
def test_a_host_that_is_stopped_counts_as_hung(start_owner, census, moment):
    owner = start_owner(moment, timeout=1).reached()
    [host] = census.hosts(owner.pid)
    os.kill(host, STOP)
    owner.go()
    if moment == "idle":
        assert owner.result() == EXPECTED
    else:
        assert set(owner.result()) == {"TimeoutError('loading the model of HeldHandler took longer than 1 s.')"}


def test_owner_fork_server_and_host_killed_at_once_are_cleaned_up_by_the_next_owner(start_owner, census, wait_until):
    """Servers survive with no process left to end them; the next owner does."""
    owner = start_owner("batch", servers=1).reached()
    assert wait_until(lambda: len(census.servers()) == 3)
    everybody = [owner.pid, *census.fork_servers(owner.pid), *census.hosts(owner.pid)]
    for number in (STOP, KILL):
        for process in everybody:
            os.kill(process, number)
    owner.process.wait()
    assert len(census.servers()) == 3
    assert start_owner().result() == EXPECTED
    assert wait_until(lambda: not census.processes()), census.processes()
