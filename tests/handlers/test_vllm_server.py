"""A server is up when it answers, says why if it does not start, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace import ConfigurationError
from headrace.handlers.vllm_server import Launch, Server, VLLMServerError, server_arguments

pytestmark = pytest.mark.large

OWNER = """
import sys, threading
from headrace.handlers.vllm_server import Launch, Server
threading.Thread(target=threading.Event().wait, daemon=True).start()
server = Server(Launch("m", tuple(sys.argv[1:]), None, 60.0))
print(server.running().port, flush=True)
threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def _stand_in(stand_in_vllm):
    pass


def launch(*arguments, timeout_secs=60.0, api_key=None):
    return Launch("m", arguments, api_key, timeout_secs)


@pytest.fixture
def family(tmp_path):
    """What runs with this test's mark in its environment: servers, guards, and what servers start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_TEST", str(tmp_path))
        yield lambda: [process for process in _processes() if f"HEADRACE_TEST={tmp_path}" in _environment(process)]


def _processes():
    return [folder for folder in Path("/proc").glob("[0-9]*") if int(folder.name) != os.getpid()]


def _environment(process):
    try:
        return (process / "environ").read_bytes().decode().split("\0")
    except OSError:
        return []


def test_server_ends_with_its_object(family):
    before = set(threading.enumerate())
    server = Server(launch("--stubborn-engine"))
    assert len(family()) == 3  # guard, server, engine
    (reader,) = (one for one in set(threading.enumerate()) - before if "vLLM" in one.name)
    del server
    assert family() == []
    assert not reader.is_alive()


@pytest.mark.parametrize("arguments", [(), ("--stubborn-engine", "--never-answer")], ids=["answering", "starting"])
def test_server_ends_with_a_killed_owner(family, popen, wait_until, arguments):
    with popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE) as owner:
        if arguments:
            assert wait_until(lambda: len(family()) == 4)
        else:
            assert int(owner.stdout.readline()) > 0
        owner.kill()
    assert wait_until(lambda: family() == []), family()


@pytest.mark.parametrize(
    ("program", "number"), [("server", signal.SIGKILL), ("server", signal.SIGSEGV), ("guard", signal.SIGKILL)]
)
def test_what_is_killed_leaves_nothing_and_is_replaced(family, wait_until, program, number):
    arguments = ["--stubborn-engine"] if program == "server" else []  # nobody else ends an engine of that sort
    server = Server(launch(*arguments, api_key="one"))
    first = server.running()
    assert first.api_key == "one"
    assert not any(b"one" in (process / "cmdline").read_bytes().split(b"\0") for process in family())
    (process,) = (process for process in family() if _program(process) == program)
    os.kill(int(process.name), number)
    assert wait_until(lambda: first.ending) == f"was killed by {number.name}"
    assert wait_until(lambda: family() == [])
    assert server.running() is not first
    assert len(family()) == 3


def _program(process):
    words = (process / "cmdline").read_bytes().decode().split("\0")
    return "guard" if words[3].endswith("vllm_guard.py") else "server" if "--port" in words else "engine"


@pytest.mark.parametrize(
    ("arguments", "timeout_secs", "said"),
    [
        (("--crash-at-start", "3"), 60, "ended itself with exit code 3 before it answered; its last lines(.|\n)*CUDA"),
        (("--never-answer",), 8, r"did not answer within 8 s; its last lines:\nloading m"),
    ],
)
def test_server_that_does_not_start_reports_its_last_lines(family, arguments, timeout_secs, said):
    with pytest.raises(VLLMServerError, match=said):
        Server(launch(*arguments, timeout_secs=timeout_secs))
    assert family() == []


def test_server_arguments_become_command_line_options():
    kwargs = {"tensor_parallel_size": 2, "enforce-eager": None, "enable-x": True, "rope": {"a": 1}, "names": ["x", "y"]}
    expected = ["--tensor-parallel-size", "2", "--enforce-eager", "--enable-x", "--rope", '{"a": 1}']
    assert server_arguments({**kwargs, "host": "127.0.0.1"}) == ((*expected, "--names", "x", "y"), None)
    assert server_arguments({"api_key": ["one", "two"]}) == ((), "one")


@pytest.mark.parametrize("kwargs", [{"port": 1}, {"model": "m"}, {"uds": "/x"}, {"host": "0.0.0.0"}, {"x": False}])
def test_reserved_server_arguments_are_refused(kwargs):
    with pytest.raises(ConfigurationError, match="vllm_server_kwargs"):
        server_arguments(kwargs)
