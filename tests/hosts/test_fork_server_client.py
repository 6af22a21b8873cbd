"""The client has hosts whenever they can be had, says why they cannot, and does not hang on its fork server."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

import pytest

from headrace.core.errors import HostStartError
from headrace.hosts import fork_server_client as module
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.system import fields_of
from toy_hosts import has_ended

pytestmark = pytest.mark.usefixtures("census")


@pytest.fixture
def new_client(toy, close_later):
    return lambda imports=None: close_later(ForkServerClient(toy(imports), "toy"))


@pytest.fixture
def client(new_client):
    return new_client()


def started(client):
    handle = client.host()
    handle.channel.close()
    handle.progress.close()
    os.close(handle.pidfd)
    return handle.process


@pytest.fixture
def born(client, close_later):
    """A host that waits for its first request, and the fork server."""
    handle = client.host()
    close_later(handle.channel)
    close_later(handle.progress)
    os.close(handle.pidfd)
    return handle.process, client.fork_server


def test_a_host_is_reaped_once(client, born):
    host, fork_server = born
    client.reap(host)
    assert client.reap(host) is None
    assert client.reap(1) is None
    started(client)
    assert client.fork_server == fork_server


def test_a_fork_server_that_dies_again_and_again_is_given_up(new_client, new_module):
    code = "import os; os.register_at_fork(before=lambda: os._exit(5))"
    with pytest.raises(HostStartError, match="that forks it ended itself with exit code 5, 3 times"):
        started(new_client(new_module(code)))


def test_a_fork_server_that_cannot_fork_says_why(new_client, new_module):
    code = "import os\ndef fail(): raise BlockingIOError(11, 'no more processes')\nos.fork = fail"
    with pytest.raises(HostStartError, match="it cannot be forked") as caught:
        started(new_client(new_module(code)))
    assert "no more processes" in str(caught.value)


def test_fork_servers_that_do_not_answer_are_given_up(client, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", 0.2)
    monkeypatch.setattr(module.ForkServerProcess, "ask", stopped(module.ForkServerProcess.ask))
    with pytest.raises(HostStartError, match=r"that forks it did not answer for 0\.2 s, 3 times"):
        started(client)


def stopped(ask):
    def asked_and_stopped(fork_server, request, *files):
        answer = ask(fork_server, request, *files)
        os.kill(fork_server._process.pid, signal.SIGSTOP)
        return answer

    return asked_and_stopped


@pytest.mark.parametrize("executable", ["/not/there", "/dev/null"])
def test_a_python_that_does_not_start_is_an_error(client, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(HostStartError, match=executable):
        started(client)


def test_a_program_that_is_no_python_is_an_error(toy, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for toy in (toy(), bytes(10_000_000)):  # one is sent before it is noticed, the other is not
        with pytest.raises(HostStartError, match="it ended itself with exit code 1"):
            started(ForkServerClient(toy, "toy"))


def test_too_many_threads_are_an_error(client, monkeypatch):
    """As when the program ends: since Python 3.12 there are no new ones then."""
    begin = threading.Thread.start

    def start(thread):
        if thread.name == "headrace output of toy":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(HostStartError, match="can't start new thread"):
        started(client)
    monkeypatch.undo()
    started(client)


def test_a_request_handler_may_have_many_megabytes(toy):
    client = ForkServerClient(toy() + bytes(32_000_000), "toy")  # what follows a pickle is not read
    assert client.reap(started(client)) is not None
    client.close()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_closing_ends_a_fork_server_that_does_not_answer(client, born, monkeypatch, wait_until, number):
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", 0.2)
    os.kill(born[1], number)
    client.close()
    assert has_ended(born[1])
    assert wait_until(lambda: has_ended(born[0]))


def test_ctrl_c_ends_a_fork_server_that_has_not_answered(client, born, ctrl_c_in):
    """What it says later would be taken for the answer to another question."""
    host, fork_server = born
    os.kill(fork_server, signal.SIGSTOP)
    presser = ctrl_c_in(module.ForkServerProcess.ask)

    def resume():
        presser.join()
        with suppress(ProcessLookupError):  # it may have been killed already
            os.kill(fork_server, signal.SIGCONT)

    resumer = threading.Thread(target=resume)
    resumer.start()
    with pytest.raises(KeyboardInterrupt):
        client.reap(host)
    resumer.join()
    assert fields_of(started(client))[1] == str(client.fork_server) != str(fork_server)
