"""A client's share in a model, when managers die, and when it is given back."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.core.errors import HostStartError
from headrace.machine.status import machine_status
from toy_hosts import a_list, mapped

pytestmark = pytest.mark.usefixtures("census", "runtime")  # with real managers, which are processes


def manager_process():
    [manager] = machine_status().managers
    return manager.process.process


def test_a_manager_that_dies_is_followed_by_another(lease_of):
    first = lease_of(a_list)
    assert mapped(first) == ["a", "model"]
    killed = manager_process()
    os.kill(killed, signal.SIGKILL)
    assert mapped(lease_of(a_list)) == ["a", "model"]
    assert manager_process() != killed


def test_a_host_comes_from_the_next_manager_which_loads_again(lease_of):
    lease = lease_of(a_list, hosted=True)
    lease.take()
    first = lease.host(0)
    os.kill(manager_process(), signal.SIGKILL)
    assert lease.reap(first.process) is None
    second = lease.host(0)
    assert second.process != first.process
    for handle in (first, second):
        handle.channel.close()
        handle.progress.close()
        os.close(handle.pidfd)


def test_a_forgotten_lease_is_released_and_a_closed_one_gets_nothing(lease_of, wait_until):
    stays, forgotten = lease_of(a_list, "stays"), lease_of(a_list, "forgotten")
    mapped(stays)
    mapped(forgotten)
    forgotten.__del__()
    assert wait_until(lambda: [model.name for model in machine_status().managers[0].models] == ["stays"])
    stays.close()
    with pytest.raises(HostStartError, match="no longer wants"):
        stays.take()
