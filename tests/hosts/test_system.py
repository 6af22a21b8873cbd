"""What the operating system does for hosts, tried on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from headrace.hosts import system
from headrace.models.memory import pids_are_local
from toy_hosts import forbidden

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


@pytest.mark.parametrize(("module", "name"), [(os, "fork"), (system.socket, "send_fds"), (system.socket, "AF_UNIX")])
def test_missing_system_features_are_named(monkeypatch, module, name):
    monkeypatch.delattr(module, name)
    assert "fork and Unix sockets" in system.why_no_hosts()


def test_a_python_that_cannot_be_found_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "sys.executable" in system.why_no_hosts()


def test_a_process_whose_parent_has_already_ended_exits(start):
    assert start("system.die_with_parent(signal.SIGTERM, 1 << 22); print('still here')").wait(LONG) == 1


def test_process_names_with_brackets_and_spaces_are_parsed(popen, tmp_path):
    program = tmp_path / "a ) R 1 (b"
    program.symlink_to("/bin/sleep")
    with popen([str(program), "1000"]) as child:
        assert system.fields_of(child.pid)[1] == str(os.getpid())
        child.kill()
    assert system.fields_of(child.pid) == []


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
