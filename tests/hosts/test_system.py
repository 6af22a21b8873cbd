"""What the operating system does for hosts, tried on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from headrace.hosts import fork_server_client, system
from headrace.hosts.system import MARK, kill_marked, kill_orphans, new_mark
from headrace.models.memory import pids_are_local
from toy_hosts import forbidden

pytestmark = pytest.mark.usefixtures("census")

LONG = 60


@pytest.fixture
def start_python(popen):
    modules = "import signal\nfrom headrace.hosts import system"
    return lambda code: popen([sys.executable, "-c", f"{modules}\n{code}"], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("module", "name"), [(os, "fork"), (system.socket, "send_fds"), (system.socket, "AF_UNIX")])
def test_missing_system_features_are_named(monkeypatch, module, name):
    monkeypatch.delattr(module, name)
    assert "fork and Unix sockets" in system.why_no_hosts()


def test_a_python_that_cannot_be_found_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "sys.executable" in system.why_no_hosts()


def test_a_process_whose_parent_has_already_ended_exits(start_python):
    assert start_python("system.die_with_parent(signal.SIGTERM, 1 << 22); print('still here')").wait(LONG) == 1


def test_process_names_with_brackets_and_spaces_are_parsed(popen, tmp_path):
    program = tmp_path / "a ) R 1 (b"
    program.symlink_to("/bin/sleep")
    with popen([str(program), "1000"]) as child:
        assert system.fields_of(child.pid)[1] == str(os.getpid())
        child.kill()
    assert system.fields_of(child.pid) == []


def test_a_host_is_killed_before_its_owner(start_python):
    look = "print(open('/proc/self/oom_score_adj').read())"
    code = f"{look}; system.change_oom_score(500); {look}; system.change_oom_score(-500); {look}"
    before, after, again = map(int, start_python(code).communicate(timeout=LONG)[0].split())
    assert (after, again) == (min(1000, before + 500), before)


def test_pids_in_proc_may_be_of_another_namespace(tmp_path):
    me = os.getpid()
    (tmp_path / "self").mkdir()
    for numbers, ours in ((f"{me}", True), (f"900\t{me}", False), (f"{me}\t{me}", False), ("", False)):
        (tmp_path / "self/status").write_text(f"Pid:\t900\nNSpid:\t{numbers}\n" if numbers else "Pid:\t900\n")
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


# Whatever carries the mark of an owner that has died is ended, and nothing else is.

NAMESPACE, _, START, _ = new_mark().split(":")


@pytest.fixture
def start(popen):
    """Starts processes that carry a mark, or none."""
    return lambda mark=None: popen(["sleep", "1000"], env=os.environ if mark is None else {**os.environ, MARK: mark})


@pytest.fixture
def dead_owner(popen):
    """The mark of a process that has ended."""
    with popen(["sleep", "1000"]) as process:
        mark = mark_of(process.pid)
        process.kill()
    return mark


def mark_of(owner):
    return f"{NAMESPACE}:{owner}:{system.fields_of(owner)[system._STARTED]}:1"


def was_killed(process):
    return process.wait(LONG) == -signal.SIGKILL


def test_marks_name_this_process_and_differ():
    marks = {new_mark() for _ in range(10)}
    assert len(marks) == 10
    assert {tuple(mark.split(":")[:3]) for mark in marks} == {(NAMESPACE, str(os.getpid()), START)}
    assert all((NAMESPACE.isdigit(), START.isdigit()))


OF_ANOTHER_FORM = ["", ":::", "x", "{n}:{p}:1", "{n}:{p}:1:1:1", "{n}:p:1:1", "{n}:-5:1:1", "{n}:²:1:1", "\n"]


def test_processes_of_dead_owners_are_killed_and_no_others(start, dead_owner, wait_until):
    owner, zombie = start(), start()
    _, dead, began, number = dead_owner.split(":")
    earlier = f"{NAMESPACE}:{owner.pid}:{int(mark_of(owner.pid).split(':')[2]) - 1}:1"  # had the pid of one that lives
    orphans = list(map(start, [dead_owner, dead_owner, mark_of(zombie.pid), earlier]))
    in_another_namespace = f"{int(NAMESPACE) + 1}:{dead}:{began}:{number}"
    odd = [mark.format(n=NAMESPACE, p=dead) for mark in OF_ANOTHER_FORM]
    others = list(map(start, [None, new_mark(), mark_of(owner.pid), in_another_namespace, *odd]))
    zombie.send_signal(signal.SIGKILL)
    assert wait_until(lambda: system.fields_of(zombie.pid)[0] == "Z")
    for _ in range(2):
        kill_orphans()
    assert all(map(was_killed, orphans))
    assert all(other.poll() is None for other in (owner, *others))


def test_whoever_starts_a_host_ends_what_killed_owners_have_left(start, dead_owner, host):
    fork_server_client._kill_orphans_once.cache_clear()
    orphan = start(dead_owner)
    host.learn(lambda rows, toy: None)
    assert was_killed(orphan)


@pytest.mark.parametrize("pidfds", ["there are", "are forbidden", "there are none"])
def test_processes_of_one_mark_are_killed_alone(start, monkeypatch, pidfds):
    if pidfds == "are forbidden":
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    elif pidfds == "there are none":
        monkeypatch.delattr(os, "pidfd_open")
    one, other = new_mark(), new_mark()
    mine, others = start(one), start(other)
    kill_marked(one)
    assert was_killed(mine)
    assert others.poll() is None


def test_a_later_process_with_the_same_pid_is_not_killed(start, monkeypatch):
    """The process is replaced by another between the looks at it."""
    mark, look = new_mark(), system._marked
    meant, later = start(mark), start()

    def replaced(process):
        found = look(process)
        if process == meant.pid:
            meant.kill()
            meant.wait()
            monkeypatch.setattr(os, "kill", lambda *_: later.kill())  # what that number would reach now
        return found

    monkeypatch.setattr(system, "_marked", replaced)
    kill_marked(mark)
    assert later.poll() is None


# In a PID namespace of its own, but with an outer /proc, Headrace touches nobody.

STRANGER = """
import json, os, subprocess
from headrace.hosts.system import MARK, kill_marked, kill_orphans, new_mark
from headrace.hosts.system import children, processes

def number_outside(process):
    "That /proc has for a process of this namespace."
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = next(line for line in open(f"/proc/{name}/status") if line.startswith("NSpid")).split()[1:]
            if numbers[-1] == str(process) and os.readlink(f"/proc/{name}/ns/pid") == os.readlink("/proc/self/ns/pid"):
                return int(name)
        except OSError:
            pass

mark = new_mark()
hosts = [subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: mark}) for _ in range(2)]
wanted = [number_outside(host.pid) for host in hosts]
strangers = []
for number in wanted:
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    strangers.append(subprocess.Popen(["sleep", "1000"], env={MARK: "another's"}))
kill_orphans()
kill_marked(mark)
seen = children() + list(processes())
alive = [process.poll() is None for process in hosts + strangers]
print(json.dumps([wanted == [one.pid for one in strangers], alive, seen]))
"""


def test_a_process_is_not_mistaken_for_one_with_its_number_in_an_outer_proc():
    """A host's number in /proc is a stranger's here, and its owner's number there is a stranger's outside."""
    unshare = ["unshare", *([] if os.getuid() == 0 else ["--map-root-user"]), "--pid", "--fork", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of processes can be made here")
    command = [*unshare, sys.executable, "-c", STRANGER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    have_numbers, alive, seen = json.loads(done.stdout)
    assert have_numbers
    assert alive == [True] * 4
    assert seen == []
