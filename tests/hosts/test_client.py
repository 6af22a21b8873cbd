"""Requests are answered, from any thread and in any number, and their memory is reused."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

from headrace.core.errors import HostStartError
from toy_hosts import double, wait_for

LONG = 60
MEGABYTE = 1 << 20


def hosts_share(rows, toy):
    """How many segments a host has mapped, and how many descriptors it has open."""
    maps = {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:headrace" in line}
    return len(maps), len(os.listdir("/proc/self/fd"))


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def test_calls_are_answered_in_order_whatever_order_responses_are_taken_in(host, gate):
    def noting(number):
        def work(rows, toy):
            toy.seen = [*getattr(toy, "seen", []), number]
            return toy.seen

        return work

    first = host.tell(wait_for(gate))
    calls = [host.tell(noting(number)) for number in range(10)]
    gate.touch()
    for number in (9, 0, 4, *(1, 2, 3, 5, 6, 7, 8)):
        assert host.result(calls[number]).rows == list(range(number + 1))
    assert host.result(first).rows == []


def test_segments_are_reused(host):
    seen = {host.learn(hosts_share) for _ in range(20)}
    for _ in range(100):
        host.ask(double, *map(float, range(1000)))
    seen.add(host.learn(hosts_share))
    assert max(seen) <= (3, 20)


class Bad:
    def __reduce__(self):
        return eval, ("1 / 0",)


def test_what_cannot_travel_is_an_error_and_harms_nothing(host):
    with pytest.raises(Exception, match="pickle"):
        host.tell(double, threading.Lock())
    assert host.ask(double, Bad()).head == ("unreadable", "ZeroDivisionError('division by zero')")
    head = host.ask(lambda rows, toy: [threading.Lock()]).head
    assert (head[0], "pickle" in head[1]) == ("unsendable", True)
    with pytest.raises(ZeroDivisionError):
        host.result(host.tell(lambda rows, toy: [Bad()]))
    assert host.ask(double, 1).rows == [2]
    assert max(host.learn(hosts_share) for _ in range(5)) <= (3, 20)


def test_calls_from_many_threads_get_their_own_responses(host):
    def talk(thread):
        for number in range(25):
            size = 10 ** (number % 6)
            calls = [host.tell(double, numpy.full(size, thread * 1000 + number + k)) for k in range(2)]
            for k, call in enumerate(calls):
                if number % 3:
                    host.is_ready(call)
                (answer,) = host.result(call).rows
                assert answer.shape == (size,)
                assert (answer == 2 * (thread * 1000 + number + k)).all()
        return thread

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(talk, range(8))) == list(range(8))
    assert max(host.learn(hosts_share) for _ in range(5))[0] <= 20


def test_any_number_of_requests_may_be_sent_before_a_response_is_taken(host):
    """More than the socket holds, so that they must be answered before all are sent."""
    for _ in range(1500):
        host.tell(double)
    assert host.ask(double, 1).rows == [2]


def test_an_abandoned_response_frees_its_memory(host, gate):
    """Its call is forgotten before it comes."""
    for _ in range(5):
        blocked = host.tell(wait_for(gate))
        for _ in range(10):
            host.tell(lambda rows, toy: [bytes(MEGABYTE)], bytes(MEGABYTE))
        gate.touch()
        host.result(blocked)
        gate.unlink()
    host.learn(hosts_share)
    segments, files = host.learn(hosts_share)
    assert segments <= 20
    assert files <= 50


def test_a_host_that_is_forgotten_ends(run_owner):
    owner = run_owner("""
import gc, warnings
from headrace.hosts.system import fields_of
warnings.simplefilter("ignore")
host = new_host()
processes = host.learn(lambda rows, toy: (os.getpid(), os.getppid()))
del host
gc.collect()
while not all(fields_of(process)[:1] in ([], ["Z"]) for process in processes):
    time.sleep(0.01)
print("ended")
""")
    assert owner.stdout == "ended\n", owner.stderr


def test_closing_lets_the_request_handler_close_is_for_good_and_may_be_repeated(host, tmp_path):
    farewell = tmp_path / "farewell"
    host.ask(lambda rows, toy: setattr(toy, "farewell", str(farewell)) or [])
    for _ in range(2):
        host.close()
        assert farewell.exists()
        with pytest.raises(HostStartError, match="its owner has closed it"):
            host.tell(double)


HANGS = {
    "ignoring signals": lambda rows, toy: (signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.pause()),
    "stopped": lambda rows, toy: os.kill(os.getpid(), signal.SIGSTOP),
}


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_closing_does_not_wait_for_a_host_that_hangs(host, hang, wait_until):
    call = host.tell(hang)
    assert wait_until(lambda: host._connections[0]._progress.read().call == call.number)
    host.close()
    with pytest.raises(HostStartError, match="its owner has closed it"):
        host.result(call)


def test_closing_ends_a_start_in_progress(new_host, new_module, wait_until):
    host, outcomes = new_host(imports=new_module("import signal; signal.pause()")), []

    def wait():
        with pytest.raises(HostStartError, match="no longer wants one"):
            host.ask(double)
        outcomes.append("woken")

    thread = threading.Thread(target=wait)
    thread.start()
    assert wait_until(lambda: host._provider._starting)
    host.close()
    thread.join(LONG)
    assert outcomes == ["woken"]


def test_a_host_that_starts_while_its_owner_hangs_up_ends(host, monkeypatch):
    start = host._provider.host

    def late(number):
        handle = start(number)
        host.hang_up()
        return handle

    monkeypatch.setattr(host._provider, "host", late)
    with pytest.raises(HostStartError, match="its owner has closed it"):
        host.ask(double, 1)


def test_hosts_that_exit_before_their_first_request_are_given_up(new_host, new_module):
    host = new_host(imports=new_module("import os; os.register_at_fork(after_in_child=lambda: os._exit(7))"))
    for _ in range(2):
        with pytest.raises(HostStartError, match="it ended itself with exit code 7 before its first request, 5 times"):
            host.ask(double)
