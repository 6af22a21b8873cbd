"""What the operating system does for hosts, tried on real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from headrace.hosts import system
from headrace.models.memory import pids_are_local
from toy_hosts import forbidden, has_ended

pytestmark = pytest.mark.usefixtures("census")

LONG = 60


@pytest.fixture
def start(popen):
    """Starts Python, which is killed in the end."""

    def start(code):
        modules = "from headrace.hosts import system"
        code = f"import os, signal, subprocess, sys, time\n{modules}\n{code}"
        return popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    return start


def is_readable(file, seconds=LONG):
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@pytest.mark.parametrize(("module", "name"), [(os, "fork"), (system.socket, "send_fds"), (system.socket, "AF_UNIX")])
def test_missing_system_features_are_named(monkeypatch, module, name):
    monkeypatch.delattr(module, name)
    assert "fork and Unix sockets" in system.why_no_hosts()


def test_a_python_that_cannot_be_found_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "sys.executable" in system.why_no_hosts()


def test_a_process_dies_with_its_parent(start, wait_until):
    code = "system.die_with_parent(signal.SIGTERM, os.getppid()); print(os.getpid(), flush=True); time.sleep(1000)"
    parent = start(f"child = os.fork()\nif not child: {code}\ntime.sleep(1000)")
    child = int(parent.stdout.readline())
    assert not has_ended(child)
    parent.kill()
    assert wait_until(lambda: has_ended(child))


def test_a_process_whose_parent_has_already_ended_exits(start):
    assert start("system.die_with_parent(signal.SIGTERM, 1 << 22); print('still here')").wait(LONG) == 1


def test_orphans_are_adopted(start):
    code = """
system.adopt_orphans()
subprocess.run(["sh", "-c", "setsid sleep 1000 & exit"])
(orphan,) = system.children()
print(system.fields_of(orphan)[1] == str(os.getpid()))
os.kill(orphan, signal.SIGKILL)
os.waitpid(orphan, 0)
print(system.children())
"""
    assert start(code).communicate(timeout=LONG)[0].split("\n")[:2] == ["True", "[]"]


def test_children_are_found_even_if_they_have_ended(popen, wait_until):
    with popen(["sleep", "1000"]) as child:
        assert child.pid in system.children()
        child.kill()
        assert wait_until(lambda: has_ended(child.pid))
        assert child.pid in system.children()
    assert child.pid not in system.children()


def test_process_names_with_brackets_and_spaces_are_parsed(popen, tmp_path):
    program = tmp_path / "a ) R 1 (b"
    program.symlink_to("/bin/sleep")
    with popen([str(program), "1000"]) as child:
        assert system.fields_of(child.pid)[1] == str(os.getpid())
        child.kill()
    assert system.fields_of(child.pid) == []


def test_the_end_of_a_process_is_seen(popen):
    with popen(["sleep", "1000"]) as child:
        pidfd = system.watch(child.pid)
        assert not is_readable(pidfd, 0)
        child.kill()
        assert is_readable(pidfd)
    os.close(pidfd)
    assert system.watch(child.pid) is None


def test_a_host_is_killed_before_its_owner(start):
    look = "print(open('/proc/self/oom_score_adj').read())"
    code = f"{look}; system.change_oom_score(500); {look}; system.change_oom_score(-500); {look}"
    before, after, again = map(int, start(code).communicate(timeout=LONG)[0].split())
    assert (after, again) == (min(1000, before + 500), before)


@pytest.mark.parametrize(
    ("status", "ours"),
    [
        ("Pid:\t{me}\nNSpid:\t{me}\n", True),
        ("Pid:\t900\nNSpid:\t900\t{me}\n", False),  # /proc is of the namespace around this one
        ("Pid:\t{me}\nNSpid:\t{me}\t{me}\n", False),
        ("Pid:\t{me}\n", True),  # before Linux 4.1
        ("Pid:\t900\n", False),
        ("", False),
    ],
)
def test_pids_in_proc_may_be_of_another_namespace(tmp_path, status, ours):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(status.format(me=os.getpid()))
    assert pids_are_local(tmp_path) is ours


def test_a_child_that_has_ended_is_still_to_be_waited_for(popen):
    with popen(["sleep", "1000"]) as child:
        assert not system.has_ended(child.pid)
        child.kill()
        assert system.has_ended(child.pid, LONG)
        assert system.has_ended(child.pid)
        assert child.wait() == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        system.has_ended(child.pid)


FORBIDDEN = {
    "nothing": lambda patch: None,
    "pidfd_open": lambda patch: patch.setattr(os, "pidfd_open", forbidden),
    "there is none": lambda patch: patch.delattr(os, "pidfd_open"),
}


@pytest.mark.parametrize("forbid", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_kill_ends_only_the_given_process(start, monkeypatch, forbid):
    forbid(monkeypatch)
    process = start("print(flush=True); time.sleep(1000)")
    process.stdout.readline()
    system.kill(process.pid, lambda _: False)
    assert process.poll() is None
    system.kill(process.pid, lambda number: number == process.pid)
    assert process.wait(LONG) == -signal.SIGKILL
    system.kill(process.pid, lambda _: True)  # gone


def test_a_later_process_with_the_same_pid_is_not_killed(start, monkeypatch):
    """The process is replaced by another between the looks at it."""
    meant, later = start("time.sleep(1000)"), start("time.sleep(1000)")

    def is_meant(number):
        meant.kill()
        meant.wait()
        monkeypatch.setattr(os, "kill", lambda *_: later.kill())  # what that number would reach now
        return True

    system.kill(meant.pid, is_meant)
    assert later.poll() is None
