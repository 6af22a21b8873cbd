"""All that a cluster has started is found and ended, whatever has become of its parents."""

from __future__ import annotations

import os
import signal
import sys

import pytest


@pytest.fixture
def members(engine_module):
    return engine_module("members")


@pytest.fixture
def mark(tmp_path, members):
    yield str(tmp_path)
    members.end_all(str(tmp_path))


def test_children_of_a_member_are_members_even_when_it_is_killed(members, mark, tmp_path):
    grandchild = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    )
    parent = members.start([sys.executable, "-c", grandchild], mark, tmp_path / "log", {})
    assert members.wait_until(lambda: len(members.members(mark)) == 2, 60)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    (left,) = members.members(mark)
    assert left != parent.pid
    assert members.end_all(mark) == 1
    assert members.members(mark) == []


def test_members_that_ignore_sigterm_are_killed(members, mark, tmp_path, monkeypatch):
    monkeypatch.setattr(members, "_PATIENCE_SECS", 0.5)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    process = members.start([sys.executable, "-c", deaf], mark, tmp_path / "log", {})
    assert members.wait_until(lambda: "deaf" in (tmp_path / "log").read_text(), 60)
    assert members.end_all(mark) == 1
    assert process.wait() == -signal.SIGKILL


def test_other_processes_are_left_alone(members, mark, popen):
    other = popen(["sleep", "600"], env={**os.environ, members.MARK: f"{mark}-2"})
    assert members.end_all(mark) == 0
    assert other.poll() is None
