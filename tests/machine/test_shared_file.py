"""Files through which the processes of a machine share a limit, and spend one budget: gone with their last user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from full_disk import full_disk
from headrace.core.config import Spent
from headrace.machine import shared_file
from headrace.machine.shared_file import Shortage, open_budget_file, shared_board
from toy_hosts import descriptors

PREAMBLE = """
import sys, time
from headrace.core.config import Spent
from headrace.machine import shared_file
from headrace.machine.shared_file import Shortage, open_budget_file, shared_board
"""
MEMBER = """
board = shared_board("a")
board.state.quota = 7.0
board.show(time.monotonic(), in_flight=3, waiting=4)
print("there", flush=True)
"""


@pytest.fixture
def board(directory, close_later):
    return close_later(shared_board("a"))


@pytest.fixture
def running(popen):
    """Starts another process, which leaves when its standard input is closed; ``said`` is its first line."""

    def start(code):
        command = [sys.executable, "-c", f"{PREAMBLE}{code}\nsys.stdin.read()"]
        process = popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.said = process.stdout.readline()
        assert process.said
        return process

    return start


@pytest.fixture
def member(running):
    return lambda: running(MEMBER)


def files(directory, kind="limit"):
    return list(Path(directory).glob(f"*.{kind}"))


def others(board, later=0.01):
    board.look(time.monotonic() + later)
    return board.others


def test_board_is_shared_and_its_file_goes_with_the_last_process(member, directory):
    process, mine = member(), shared_board("a")
    assert mine.state.quota == 7.0
    assert [one.in_flight for one in others(mine)] == [3]
    mine.close()
    assert len(files(directory)) == 1
    process.communicate()  # it ends without closing, as engines do: they close few of their sessions
    assert process.returncode == 0
    assert not os.path.exists(directory)


def test_of_processes_that_end_at_once_the_last_one_removes_the_file(directory, running):
    mine = shared_board("a")
    running("shared_board('a'); shared_file._remove_all(); print('it looked whether others use the file', flush=True)")
    mine.close()
    assert not os.path.exists(directory)


def test_file_of_a_killed_process_is_removed_by_the_next(member, directory):
    kill(member())
    assert len(files(directory)) == 1
    shared_board("b").close()
    assert not os.path.exists(directory)


def test_only_one_process_has_the_turn(board, popen):
    command = [sys.executable, "-c", f"{PREAMBLE}\nwith shared_board('a').turn() as got:\n    sys.exit(got)"]
    with board.turn() as is_mine:
        assert is_mine
        assert popen(command).wait() == 0
    assert popen(command).wait() == 1


def test_closed_board_is_of_use_to_its_process_alone(board):
    other = shared_board("a")
    other.close()
    other.state.quota = 5.0
    other.show(1.0, in_flight=1, waiting=0)
    with other.turn() as is_mine:
        assert is_mine
    other.close()
    assert board.state.quota != 5.0


def test_directory_that_cannot_be_used_leaves_each_process_its_own_limit(directory, caplog, monkeypatch):
    Path(directory, "file").touch()
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{directory}/file")
    with caplog.at_level("INFO"):
        assert not shared_board("a").is_shared
    assert "Each process finds out for itself" in caplog.text


def test_forked_child_has_a_board_of_its_own(board):
    child = os.fork()
    if not child:
        theirs = shared_board("a")
        os._exit(theirs.own.owner == board.own.owner or len(others(theirs)) != 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(others(board)) == 1


@pytest.fixture
def mine(directory):
    file = open_budget_file("a")
    yield file
    file.leave()


@pytest.fixture
def spender(running):
    def start():
        process = running("file = open_budget_file('a'); file.add(Spent(1, 10, 0.5)); print(*file.total(), flush=True)")
        process.total = Spent(*map(float, process.said.split()))
        return process

    return start


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_all_processes_spend_together(mine, spender):
    mine.add(Spent(2, 20, 1.0))
    other = spender()
    assert other.total == mine.total() == Spent(3, 30, 1.5)
    other.communicate()
    assert mine.total() == Spent(3, 30, 1.5)
    assert not mine.is_spent
    mine.mark_spent()
    assert mine.is_spent


def test_what_a_killed_process_spent_stays_counted_while_others_run(mine, spender):
    kill(spender())
    assert mine.total() == Spent(1, 10, 0.5)
    assert spender().total == Spent(2, 20, 1.0)


def test_file_of_a_killed_run_stays_for_an_hour(spender, directory):
    kill(spender())
    shared_board("b").close()
    (file,) = files(directory, "budget")
    long_ago = time.time() - 4000
    os.utime(file, (long_ago, long_ago))
    second = spender()
    assert second.total == Spent(2, 20, 1.0), "whoever has the same budget goes on, whenever"
    kill(second)
    shared_board("b").close()
    assert files(directory, "budget") == [file]
    os.utime(file, (long_ago, long_ago))
    shared_board("b").close()
    assert not os.path.exists(directory)


def test_full_disk_has_no_budget_and_its_file_is_not_left_open(directory):
    before = descriptors()
    with full_disk(8), pytest.raises(OSError, match="too large"):
        open_budget_file("a")
    assert descriptors() == before


def test_forked_child_spends_of_the_same_budget(mine):
    mine.add(Spent(1, 1, 1))
    child = os.fork()
    if not child:
        theirs = open_budget_file("a")
        theirs.add(Spent(1, 1, 1))
        os._exit(theirs.total() != Spent(2, 2, 2))
    assert os.waitpid(child, 0)[1] == 0
    mine.add(Spent(1, 1, 1))
    assert mine.total() == Spent(3, 3, 3)


def test_what_is_left_of_a_killed_process_is_added_to_by_another(mine, spender, directory):
    size = files(directory, "budget")[0].stat().st_size
    for _ in range(3):
        kill(spender())
    assert mine.total() == Spent(3, 30, 1.5)
    assert files(directory, "budget")[0].stat().st_size < 3 * size


WAITS = """
one = Shortage()
one.ask()
print("asked", flush=True)
sys.stdin.readline()
one.settle()
print("settled", flush=True)
"""


@pytest.fixture
def waiting(directory, running, monkeypatch):
    """Another process, which waits until it is told not to."""
    monkeypatch.setattr(shared_file, "_FRESH_SECS", 300.0)
    return running(WAITS)


def test_others_hear_of_it_and_it_leaves_nothing(waiting, directory):
    since, at = Shortage().asked()
    assert since <= at
    waiting.stdin.write("\n")
    waiting.stdin.flush()
    assert waiting.stdout.readline() == "settled\n"
    assert Shortage().asked() is None
    assert not os.path.exists(directory)


def test_nobody_listens_to_itself_nor_makes_the_directory(directory):
    os.rmdir(directory)
    one = Shortage()
    assert one.asked() is None
    assert not os.path.exists(directory)
    one.ask()
    assert one.asked() is Shortage().asked() is None
    for _ in range(2):
        one.settle()
    assert not os.path.exists(directory)


def test_one_that_was_killed_waits_no_longer(waiting, directory, monkeypatch):
    kill(waiting)
    assert Shortage().asked() is not None
    monkeypatch.setattr(shared_file, "_FRESH_SECS", 0.0)
    assert Shortage().asked() is None
    other = Shortage()
    other.ask()
    other.settle()
    assert not os.path.exists(directory)


def test_without_a_runtime_directory_nobody_hears(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / "file"))
    one = Shortage()
    one.ask()
    assert one.asked() is None
    one.settle()
