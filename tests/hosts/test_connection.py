"""Whatever becomes of a host, the request on which it worked is lost, and all others are answered."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import HostStartError
from headrace.hosts.provider import HostFailure
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Activity, ActivitySnapshot
from toy_hosts import double, hang, has_ended, process, wait_for

LONG = 60
FATAL = {
    "SIGKILL": (lambda rows, toy: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
    "SIGSEGV": (lambda rows, toy: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
    "SIGTERM": (lambda rows, toy: os.kill(os.getpid(), signal.SIGTERM), "was killed by SIGTERM"),
    "os._exit": (lambda rows, toy: os._exit(3), "ended itself with exit code 3"),
    "SystemExit": (lambda rows, toy: exit_with(4), "ended itself with exit code 4"),
    "SystemExit with words": (lambda rows, toy: exit_with("no"), "ended itself with exit code 1"),
    "KeyboardInterrupt": (lambda rows, toy: interrupt(), "ended itself with exit code 1"),
}


def exit_with(code):
    raise SystemExit(code)


def interrupt():
    raise KeyboardInterrupt


def die(rows, toy):
    os.kill(os.getpid(), signal.SIGKILL)


def both(host):
    """The host's process and its fork server's."""
    return host.learn(lambda rows, toy: (os.getpid(), os.getppid()))


def is_working(host, call):
    return host._connections[0]._progress.read().call == call.number


def kill(process, wait_until, number=signal.SIGKILL):
    os.kill(process, number)
    assert wait_until(lambda: has_ended(process))


@pytest.mark.parametrize(("work", "exit_text"), FATAL.values(), ids=FATAL)
def test_a_request_that_ends_its_host_is_lost(host, work, exit_text):
    host.learn(lambda rows, toy: 1)
    call = host.tell(work, 1, 2)
    host_failure = host.result(call)
    assert (host_failure.timed_out, host_failure.exit_text) == (False, exit_text)
    assert (host_failure.snapshot.call, host_failure.snapshot.activity) == (call.number, Activity.DECODING)
    assert host.result(call) is host_failure
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
    kill(both_of(host), wait_until)
    (answer,) = host.result(call).rows
    assert has_ended(answer)
    assert host.ask(process).rows != [answer]


def both_of(host):
    return host._connections[0].process


def test_a_request_that_takes_too_long_is_lost(new_host):
    host = new_host(timeout_secs=2)

    def work(rows, toy):
        toy.progress.mark(Activity.INFERENCE, 1, 2)
        signal.pause()

    host.ask(double)
    call = host.tell(work, 1, 2)
    host_failure = host.result(call)
    assert host_failure.timed_out
    assert host_failure.exit_text == "was killed, having taken longer than 2 s"
    snapshot = host_failure.snapshot
    assert (snapshot.call, snapshot.activity, snapshot.position, snapshot.index) == (
        call.number,
        Activity.INFERENCE,
        1,
        2,
    )
    assert snapshot.seconds > 2
    assert host.ask(double, 1).rows == [2]


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


@pytest.mark.large
def test_a_host_that_is_stopped_while_idle_is_replaced_and_nothing_is_lost(new_host):
    host = new_host(timeout_secs=2)
    first, fork_server = both(host)
    os.kill(first, signal.SIGSTOP)
    second, same_fork_server = both(host)
    assert second != first
    assert same_fork_server == fork_server


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


def test_a_host_that_closes_every_descriptor_and_hangs_is_lost(host):
    def work(rows, toy):
        os.closerange(0, 4096)
        signal.pause()

    host_failure = host.ask(work)
    assert host_failure.exit_text == "closed the connection to its owner"
    assert host.ask(double, 1).rows == [2]


def test_a_child_that_keeps_the_connection_open_hides_no_death(host, tmp_path, wait_until):
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


def test_a_host_that_hangs_is_killed_even_if_its_fork_server_is_stopped(new_host, monkeypatch, wait_until):
    host = new_host(timeout_secs=2)
    process, fork_server = both(host)
    os.kill(fork_server, signal.SIGSTOP)
    monkeypatch.setattr("headrace.hosts.fork_server_process._LONGEST_ANSWER_SECS", 0.3)
    assert host.ask(hang).timed_out
    assert wait_until(lambda: has_ended(process))
    monkeypatch.setattr("headrace.hosts.fork_server_process._LONGEST_ANSWER_SECS", LONG)
    assert host.ask(double, 1).rows == [2]


def test_too_many_open_files_cost_no_request(host, no_more_files, descriptors):
    """However many are missing: starting, sending and receiving need some."""
    outcomes = set()
    for spare in range(40):
        with no_more_files(spare):
            try:
                outcomes.add(tuple(host.ask(double, b"x" * 70_000 * (spare + 1))[0]))
            except (HostStartError, OSError) as error:
                outcomes.add(type(error))
    assert HostStartError in outcomes
    assert tuple("done") in outcomes
    assert outcomes <= {HostStartError, OSError, tuple("done")}
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
