"""Worker processes that share a limit for one endpoint: what happens to one of them concerns no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from http_endpoint import Answer, serving
from waiting import wait_until

pytestmark = pytest.mark.large

COUNT = 300
APART = 10**5


@pytest.fixture
def ask(popen, directory):
    def start(server, number):
        program = Path(__file__).with_name("asker.py")
        command = [sys.executable, program, server.url, number * APART, COUNT]
        return popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)

    return start


def asked_by(server, number):
    with server.lock:
        return sum(example // APART == number for (example,) in server.requests)


def assert_right(worker, number):
    first = number * APART
    assert json.loads(worker.communicate(timeout=120)[0]) == [2 * n for n in range(first, first + COUNT)]


def slow(examples, before):
    return Answer(delay=0.02)


def test_killed_worker_fails_no_other(ask, directory):
    """It dies with requests in flight, and perhaps while it had the turn."""
    with serving(slow) as server:
        workers = [ask(server, number) for number in range(3)]
        assert wait_until(lambda: asked_by(server, 0) > 50)
        os.kill(workers[0].pid, signal.SIGKILL)
        for number in (1, 2):
            assert_right(workers[number], number)
        assert workers[0].wait() == -signal.SIGKILL
    assert not os.path.exists(directory)


def test_stopped_worker_holds_back_no_other(ask, directory):
    with serving(slow) as server:
        workers = [ask(server, number) for number in range(2)]
        assert wait_until(lambda: all(asked_by(server, number) > 50 for number in range(2)))
        os.kill(workers[0].pid, signal.SIGSTOP)
        try:
            assert_right(workers[1], 1)
        finally:
            os.kill(workers[0].pid, signal.SIGCONT)
        assert_right(workers[0], 0)
    assert not os.path.exists(directory)
