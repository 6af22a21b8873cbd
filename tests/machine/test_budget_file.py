"""The file through which the processes of a machine spend one budget: nothing is forgotten while it is there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.core.budget import Spent
from headrace.machine import budget_file
from headrace.machine.budget_file import close_budget_file, open_budget_file
from headrace.machine.limit_file import shared_board

MEMBER = """
import sys
from headrace.core.budget import Spent
from headrace.machine.budget_file import open_budget_file
file = open_budget_file(sys.argv[1])
file.add(Spent(1, 10, 0.5))
print(*file.total(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def opened(directory):
    """Opens the file of the named budget in this process."""
    files = []

    def opened(name="a"):
        files.append(open_budget_file(name))
        return files[-1]

    yield opened
    for file in files:
        close_budget_file(file)


@pytest.fixture
def member(popen):
    """Starts another process that spends of the named budget; it ends when its standard input is closed."""

    def start(name="a"):
        process = popen([sys.executable, "-c", MEMBER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.total = Spent(*map(float, process.stdout.readline().split()))
        return process

    return start


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def files(directory):
    return list(Path(directory).glob("*.budget"))


def test_all_processes_spend_together(opened, member):
    mine = opened()
    mine.add(Spent(2, 20, 1.0))
    other = member()
    assert other.total == mine.total() == Spent(3, 30, 1.5)
    other.communicate()
    assert mine.total() == Spent(3, 30, 1.5)


def test_users_of_one_process_share_its_row(opened):
    one, other = opened(), opened()
    one.add(Spent(1, 1, 1))
    other.add(Spent(1, 1, 1))
    assert one.total() == Spent(2, 2, 2)


def test_other_budgets_are_others(opened):
    one, other = opened("a"), opened("b")
    one.add(Spent(1, 1, 1))
    one.mark_spent()
    assert (other.total(), other.is_spent) == (Spent(), False)


def test_process_hears_that_the_budget_is_spent(opened, member):
    mine = opened()
    assert not mine.is_spent
    mine.mark_spent()
    assert mine.is_spent


def test_what_a_killed_process_spent_stays_counted_while_others_run(opened, member):
    mine = opened()
    kill(member())
    assert mine.total() == Spent(1, 10, 0.5)
    assert member().total == Spent(2, 20, 1.0)


def test_process_that_comes_after_the_only_one_was_killed_goes_on(member, directory):
    kill(member())
    second = member()
    assert second.total == Spent(2, 20, 1.0)
    kill(second)
    third = member()
    assert third.total == Spent(3, 30, 1.5)
    third.communicate()
    assert not os.path.exists(directory)


def test_file_is_gone_with_its_last_user(directory):
    one, other = open_budget_file("a"), open_budget_file("a")
    close_budget_file(one)
    assert len(files(directory)) == 1
    close_budget_file(other)
    assert not os.path.exists(directory)


def test_process_that_ends_without_leaving_removes_the_file(member, directory):
    member().communicate()
    assert not os.path.exists(directory)


def test_file_of_a_killed_run_stays_for_an_hour(member, directory):
    kill(member())
    shared_board("b").close()
    (file,) = files(directory)
    long_ago = time.time() - 4000
    os.utime(file, (long_ago, long_ago))
    shared_board("b").close()
    assert not os.path.exists(directory)


def test_more_processes_than_rows_are_refused(opened, member, monkeypatch):
    monkeypatch.setattr(budget_file, "ROWS", 1)
    process = member()
    with pytest.raises(OSError, match="1 processes spend this budget") as error:
        opened()
    assert error.value.errno == errno.EUSERS
    process.communicate()


def test_file_that_was_cut_is_an_error(opened, directory):
    mine = opened()
    (file,) = files(directory)
    os.truncate(file, 100)
    with pytest.raises(OSError, match="shorter than it was"):
        mine.total()


def test_forked_child_has_a_row_of_its_own(opened):
    mine = opened()
    mine.add(Spent(1, 1, 1))
    child = os.fork()
    if not child:
        theirs = open_budget_file("a")
        theirs.add(Spent(1, 1, 1))
        os._exit(theirs.total() != Spent(2, 2, 2))
    assert os.waitpid(child, 0)[1] == 0
    mine.add(Spent(1, 1, 1))
    assert mine.total() == Spent(3, 3, 3)
