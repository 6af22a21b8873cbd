"""On operating systems that offer less, model hosts work by plainer means, or say that they cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.large

LESS = """
import ctypes, os

del os.memfd_create, os.pidfd_open

class LibraryWithoutPrctl(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = LibraryWithoutPrctl
"""
"""It runs at the start of the owner, its fork server and what those start."""

EXPECTED = [[n, 2 * n] for n in range(24)]


@pytest.fixture
def start_poor_owner(tmp_path, start_owner, monkeypatch):
    def start(timeout=None):
        (tmp_path / "sitecustomize.py").write_text(LESS)
        path = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), path]) if path else str(tmp_path))
        owner = start_owner(timeout).reached()
        assert owner.file("host has") == ""
        return owner

    return start


@pytest.mark.parametrize("whom", ["hosts", "fork_servers"])
def test_what_is_killed_is_recovered(start_poor_owner, census, whom):
    """Nothing notifies the host of a killed fork server, so the owner has to end it."""
    owner = start_poor_owner()
    [victim] = getattr(census, whom)(owner.pid)
    os.kill(victim, signal.SIGKILL)
    owner.go()
    assert owner.result() == EXPECTED


def test_the_owners_end_ends_all(start_poor_owner, census, wait_until):
    """Fork server and host see their channels close, and the fork server ends the host."""
    owner = start_poor_owner()
    assert len(census.processes()) == 3
    owner.process.kill()
    owner.process.wait()
    assert wait_until(lambda: not census.processes()), census.processes()


def test_a_hanging_host_is_killed_and_its_element_fails(start_poor_owner):
    """The held element is never released."""
    result = start_poor_owner(timeout=2).result()
    where = "element 0 (counted from 0) of a batch of 4"
    assert result[4] == f"TimeoutError('running inference on {where} took longer than 2 s.')"
    assert result[:4] + result[5:] == EXPECTED[:4] + EXPECTED[5:]


def test_isolation_without_fork_is_refused():
    script = "import os; del os.fork; from headrace import predict; from headrace.testing import DoublingHandler; "
    done = subprocess.run(
        [sys.executable, "-c", f"{script} predict(DoublingHandler(), [1], isolate=True)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ConfigurationError: isolate=True, use_subprocess=True and timeout run the model" in done.stderr
    assert "processes that fork" in done.stderr
