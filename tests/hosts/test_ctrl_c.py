"""Ctrl-C at any time leaves a host that can be used, or closed, and harms no other thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.hosts.connection import HostConnection
from headrace.hosts.fork_server_process import ForkServerProcess
from toy_hosts import double, process, wait_for


def test_ctrl_c_in_the_main_threads_wait_leaves_other_threads_waiting(host, tmp_path, ctrl_c_in):
    call, results = host.tell(wait_for(tmp_path / "gate")), []
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            pool.submit(lambda: results.append(host.ask(double, 1).rows))
        ctrl_c_in(HostConnection.wait_until)
        with pytest.raises(KeyboardInterrupt):
            host.result(call)
        (tmp_path / "gate").touch()
    assert results == [[2]] * 3


def test_ctrl_c_in_a_start_ends_it(new_host, new_module, marked, ctrl_c_in):
    host = new_host(imports=new_module("import signal; signal.pause()"))
    ctrl_c_in(ForkServerProcess.ask)
    with pytest.raises(KeyboardInterrupt):
        host.ask(double)
    assert marked() == []
    assert not host._changing.locked()


@pytest.mark.parametrize("when", ["_accept", "_send"])
def test_an_interrupted_message_costs_the_host_and_fails_no_request(host, monkeypatch, when):
    """As by Ctrl-C at the worst of times: who knows what the host has been told, or has said."""
    first = host.ask(process).rows
    calls = [host.tell(process) for _ in range(2)]
    connection = host._connections[0]
    original, broken = getattr(connection, when), []

    def interrupted(*args, **options):
        if not broken:
            broken.append(args)
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(connection, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.result(calls[0]) if when == "_accept" else host.tell(process)
    rows = [host.result(call).rows for call in calls]
    assert rows[1] != first
    assert host.ask(process).rows != first
