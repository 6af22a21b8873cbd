"""Whatever becomes of a host, the request on which it worked is lost, and all others are answered."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import HostStartError
from headrace.hosts.connection import HostConnection
from headrace.hosts.fork_server_client import ForkServerProcess
from headrace.hosts.provider import HostFailure
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Activity, ActivitySnapshot
from toy_hosts import double, hang, has_ended, process, wait_for

LONG = 60


def exit_with(code):
    raise SystemExit(code)


def interrupt():
    raise KeyboardInterrupt


def die(rows, toy):
    os.kill(os.getpid(), signal.SIGKILL)


def close_everything(rows, toy):
    os.closerange(0, 4096)
    signal.pause()


ENDS = [
    (close_everything, "closed the connection to its owner"),
    (die, "was killed by SIGKILL"),
    (lambda rows, toy: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
    (lambda rows, toy: os.abort(), "was killed by SIGABRT"),
    (lambda rows, toy: os.kill(os.getpid(), signal.SIGTERM), "was killed by SIGTERM"),
    (lambda rows, toy: os._exit(3), "ended itself with exit code 3"),
    (lambda rows, toy: exit_with(4), "ended itself with exit code 4"),
    (lambda rows, toy: exit_with("no"), "ended itself with exit code 1"),
    (lambda rows, toy: interrupt(), "ended itself with exit code 1"),
]


def both(host):
    """The host's process and its fork server's."""
    return host.learn(lambda rows, toy: (os.getpid(), os.getppid()))


def is_working(host, call):
    return host._connections[0]._progress.read().call == call.number


def test_a_request_that_ends_its_host_is_lost(host):
    for work, exit_text in ENDS:
        assert host.ask(double, 1).rows == [2]
        call = host.tell(work, 1, 2)
        failure = host.result(call)
        assert (failure.timed_out, failure.exit_text) == (False, exit_text)
        assert (failure.snapshot.call, failure.snapshot.activity) == (call.number, Activity.DECODING)
        assert host.result(call) is failure
    assert host.ask(double, 1).rows == [2]


def test_only_the_running_one_of_several_threads_calls_is_lost(host):
    def talk(thread):
        return [host.ask(die if (thread, number) == (3, 5) else double, thread, number) for number in range(10)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(talk, range(8)))
    lost = [(t, n) for t in range(8) for n in range(10) if isinstance(results[t][n], HostFailure)]
    assert lost == [(3, 5)]
    assert all(results[t][n].rows == [2 * t, 2 * n] for t in range(8) for n in range(10) if (t, n) != (3, 5))


def test_threads_that_send_at_once_leave_room_in_the_channel(host, tmp_path, wait_until):
    """Else a sender would wait there, and nobody could look at time limits."""
    connection = host.tell(wait_for(tmp_path / "gate")).connection
    with ThreadPoolExecutor(20) as pool:
        with connection._lock:
            calls = [pool.submit(host.ask, double, number) for number in range(20)]
            assert wait_until(lambda: str(sys._current_frames().values()).count("code send>") == 20)
        assert wait_until(lambda: len(connection._pending) == 21)
        inline = [one for one in connection._pending.values() if one.segment is None]
        (tmp_path / "gate").touch()
        assert len(inline) <= 8
        assert [call.result().rows for call in calls] == [[2 * number] for number in range(20)]


def test_a_response_outlives_its_host(host, wait_until):
    call = host.tell(lambda rows, toy: [bytes(1_000_000)])
    assert wait_until(lambda: host.is_ready(call))
    assert isinstance(host.ask(die), HostFailure)
    assert host.ask(double, 1).rows == [2]
    assert host.result(call).rows == [bytes(1_000_000)]


def test_a_response_sent_before_the_host_died_counts(host, wait_until):
    """It lies in the socket of a host that has died."""
    call = host.tell(process)
    assert wait_until(lambda: host._connections[0]._poll.poll(0))
    server = host._connections[0].process
    os.kill(server, signal.SIGKILL)
    assert wait_until(lambda: has_ended(server))
    assert host.result(call).rows == [server]
    assert host.ask(process).rows != [server]


@pytest.fixture
def timed(new_host):
    """A host that has begun, and has plenty of time until it has to hurry."""
    host = new_host(timeout_secs=LONG)
    host.ask(double)
    return host


def hurry(host):
    """Leaves the host little time; the next one will have plenty again."""
    host._connections[0]._timeout_secs = 0.2


def test_a_request_that_takes_too_long_is_lost(timed, wait_until):
    def work(rows, toy):
        toy.progress.mark(Activity.INFERENCE, 1, 2)
        signal.pause()

    call = timed.tell(work, 1, 2)
    assert wait_until(lambda: call.connection.snapshot().activity is Activity.INFERENCE)
    hurry(timed)
    failure = timed.result(call)
    assert (failure.timed_out, failure.exit_text) == (True, "was killed, having taken longer than 0.2 s")
    snapshot = failure.snapshot
    at = (snapshot.call, snapshot.activity, snapshot.position, snapshot.index)
    assert at == (call.number, Activity.INFERENCE, 1, 2)
    assert snapshot.seconds > 0.2
    assert timed.ask(double, 1).rows == [2]


def test_readiness_check_notices_an_overrun(new_host, wait_until):
    host = new_host(timeout_secs=0.1)
    call = host.tell(hang)
    assert wait_until(lambda: host.is_ready(call))
    assert host.result(call).timed_out


def test_only_the_time_counts_that_a_host_is_idle_and_a_request_waits(host, tmp_path):
    """Neither how long there was nothing to do, nor how long others came first."""
    call = host.tell(wait_for(tmp_path / "gate"))
    pending, now = call.connection._pending, time.monotonic()
    for idle_secs, waiting_secs in ((1000, 1), (1, 1000)):
        pending[call.number] = pending[call.number]._replace(sent=now - waiting_secs)
        snapshot = ActivitySnapshot(0, Activity.NOTHING, -1, 0, int((now - idle_secs) * 1e9))
        assert 1 <= call.connection._seconds_busy(snapshot) < 500
    (tmp_path / "gate").touch()
    host.result(call)


def test_a_host_that_is_stopped_while_idle_is_replaced_and_nothing_is_lost(timed):
    first, fork_server = both(timed)
    os.kill(first, signal.SIGSTOP)
    hurry(timed)
    second, same_fork_server = both(timed)
    assert (second != first, same_fork_server) == (True, fork_server)


def test_hosts_whose_imports_never_finish_are_given_up(new_host, new_module, monkeypatch):
    """Each of them imports, since the fork server has found that the module starts a thread."""
    monkeypatch.setattr("headrace.hosts.connection._LONGEST_START_SECS", 0.1)
    code = f"""
import os, signal, threading
if os.getppid() != {os.getpid()}:
    signal.pause()
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    host = new_host(timeout_secs=0.1, imports=new_module(code))
    with pytest.raises(HostStartError, match=r"having taken longer than 0\.1 s before its first request, 5 times"):
        host.ask(double)


def test_a_child_that_keeps_the_connection_open_hides_no_death(host, tmp_path):
    def work(rows, toy):
        child = os.fork()
        if not child:
            os.setsid()
            (tmp_path / "ready").write_text(str(os.getpid()))
            signal.pause()
        while not (tmp_path / "ready").exists():
            time.sleep(0.001)
        os._exit(5)

    assert host.ask(work).exit_text == "ended itself with exit code 5"
    assert has_ended(int((tmp_path / "ready").read_text()))
    assert host.ask(double, 1).rows == [2]


def test_connection_notices_an_exit_without_pidfds(host, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    assert host.ask(die).exit_text == "was killed by SIGKILL"
    assert host.ask(double, 1).rows == [2]


def test_a_request_is_lost_when_its_fork_server_is_killed(host, wait_until):
    _, fork_server = both(host)
    calls = [host.tell(hang), host.tell(double, 1)]
    assert wait_until(lambda: is_working(host, calls[0]))
    os.kill(fork_server, signal.SIGKILL)
    assert host.result(calls[0]).exit_text == "was killed together with the process that had started it"
    assert host.result(calls[1]).rows == [2]


def test_a_host_that_hangs_is_killed_even_if_its_fork_server_is_stopped(timed, monkeypatch, wait_until):
    process, fork_server = both(timed)
    os.kill(fork_server, signal.SIGSTOP)
    hurry(timed)
    monkeypatch.setattr("headrace.hosts.fork_server_client._LONGEST_ANSWER_SECS", 0.3)
    assert timed.ask(hang).timed_out
    assert wait_until(lambda: has_ended(process))
    monkeypatch.setattr("headrace.hosts.fork_server_client._LONGEST_ANSWER_SECS", LONG)
    assert timed.ask(double, 1).rows == [2]


def test_too_many_open_files_cost_no_request(host, no_more_files):
    """However many are missing, until enough are left: starting, sending and receiving need some."""
    outcomes, done = [], tuple("done")
    while outcomes[-5:] != [done] * 5:
        with no_more_files(spare=len(outcomes)):
            try:
                outcomes.append(tuple(host.ask(double, b"x" * 70_000 * (len(outcomes) + 1))[0]))
            except (HostStartError, OSError) as error:
                outcomes.append(type(error))
    assert HostStartError in outcomes
    assert set(outcomes) <= {HostStartError, OSError, done}
    assert host.ask(double, 1).rows == [2]


def test_a_client_that_stops_in_the_middle_of_a_message_does_not_hold_up_others(host):
    def have_little_patience(rows, toy):
        sys.modules["headrace.hosts.host"]._LONGEST_STALL_SECS = 0.1

    host.learn(have_little_patience)
    mine, theirs = Channel.pair()
    host._connections[0].add_client(theirs.fileno())
    theirs.close()
    mine._socket.sendall(b"half")
    assert host.ask(double, 1).rows == [2]
    with pytest.raises(EOFError):
        mine.receive(LONG)
    mine.close()


# Ctrl-C at any time leaves a host that can be used, or closed, and harms no other thread.


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
