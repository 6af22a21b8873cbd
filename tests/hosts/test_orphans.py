"""Whatever carries the mark of an owner that has died is ended, and nothing else is."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.hosts import fork_server_process, system
from headrace.hosts.system import MARK, kill_marked, kill_orphans, new_mark

pytestmark = pytest.mark.usefixtures("census")

LONG = 60
NAMESPACE, OWNER, START, _ = new_mark().split(":")


@pytest.fixture
def start(popen):
    """Starts processes that carry a mark, or none."""
    return lambda mark=None, command=("sleep", "1000"): popen(
        command, env={**os.environ, MARK: mark} if mark is not None else None
    )


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


def connections(process):
    return process.poll() is None


def test_marks_name_this_process_and_differ():
    marks = {new_mark() for _ in range(10)}
    assert len(marks) == 10
    assert {tuple(mark.split(":")[:3]) for mark in marks} == {(NAMESPACE, str(os.getpid()), START)}
    assert all((NAMESPACE.isdigit(), START.isdigit()))


def test_processes_of_a_dead_owner_are_killed(start, dead_owner):
    one, other = start(dead_owner), start(dead_owner)
    kill_orphans()
    assert was_killed(one)
    assert was_killed(other)


def test_whoever_starts_a_host_ends_what_killed_owners_have_left(start, dead_owner, host):
    fork_server_process._kill_orphans_once.cache_clear()
    orphan = start(dead_owner)
    host.learn(lambda rows, toy: None)
    assert was_killed(orphan)


def test_processes_of_a_living_owner_stay(start):
    owner = start()
    mine, anothers, nobodys = start(new_mark()), start(mark_of(owner.pid)), start()
    kill_orphans()
    kill_orphans()
    assert all(map(connections, (owner, mine, anothers, nobodys)))


def test_an_owner_that_is_a_zombie_is_dead(start, wait_until):
    owner = start()
    child = start(mark_of(owner.pid))
    os.kill(owner.pid, signal.SIGKILL)
    assert wait_until(lambda: system.fields_of(owner.pid)[0] == "Z")
    kill_orphans()
    assert was_killed(child)


def test_a_later_process_with_an_owners_pid_is_not_the_owner(start):
    later = start()
    began = int(mark_of(later.pid).split(":")[2])
    child = start(f"{NAMESPACE}:{later.pid}:{began - 1}:1")
    kill_orphans()
    assert was_killed(child)
    assert connections(later)


@pytest.mark.parametrize(
    "mark",
    ["", ":::", "x", "{n}:{p}:1", "{n}:{p}:1:1:1", "{n}:p:1:1", "{n}:-5:1:1", "{n}:²:1:1", "\n"],
)
def test_a_mark_of_another_form_is_left_alone(start, mark, dead_owner):
    stranger = start(mark.format(n=NAMESPACE, p=dead_owner.split(":")[1]))
    orphan = start(dead_owner)
    kill_orphans()
    assert was_killed(orphan)
    assert connections(stranger)


def test_a_mark_of_another_namespace_is_left_alone(start, dead_owner):
    _, owner, began, number = dead_owner.split(":")
    stranger = start(f"{int(NAMESPACE) + 1}:{owner}:{began}:{number}")
    kill_orphans()
    assert connections(stranger)


def test_processes_of_one_mark_are_killed_alone(start):
    one, other = new_mark(), new_mark()
    mine, others = start(one), start(other)
    kill_marked(one)
    assert was_killed(mine)
    assert connections(others)
