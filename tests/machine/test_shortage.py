"""A process that waits for memory is heard by the others, for as long as it waits and lives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.machine import shared_file
from headrace.machine.shared_file import Shortage

WAITS = """
import sys
from headrace.machine.shared_file import Shortage
one = Shortage()
one.ask()
print("asked", flush=True)
sys.stdin.readline()
one.settle()
print("settled", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def waiting(directory, popen, monkeypatch):
    """Another process, which waits until it is told not to."""
    monkeypatch.setattr(shared_file, "_FRESH_SECS", 300.0)
    process = popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "asked\n"
    return process


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
    assert one.asked() is None
    assert Shortage().asked() is None
    one.settle()
    one.settle()
    assert not os.path.exists(directory)


def test_one_that_was_killed_waits_no_longer(waiting, directory, monkeypatch):
    waiting.kill()
    waiting.wait()
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
