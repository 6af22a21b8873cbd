"""However a process ends, its end is reported and nothing of its group is left."""

import os

import pytest


@pytest.fixture
def run(benchmark_module, tmp_path):
    """Runs a shell command; returns how it ended."""
    processes = benchmark_module("processes")

    def run(command, limit_secs=60, log=None):
        with log or (tmp_path / "log").open("w") as log:
            return processes.run_to_the_end(["sh", "-c", command], limit_secs, directory=tmp_path, log=log)

    return run


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("exit 0", "by itself"),
        ("exit 3", "failed with exit code 3"),
        ("kill -SEGV $$", "died of SIGSEGV"),
        ("kill -KILL $$", "died of SIGKILL"),
    ],
)
def test_the_end_of_a_process_is_reported(run, command, ending):
    assert run(command) == ending


def test_processes_left_behind_are_killed(run):
    """Every process that holds the log keeps it open: it ends only when all have ended."""
    reader, writer = map(os.fdopen, os.pipe(), "rw")

    assert run("sleep 1001 & echo left behind", log=writer) == "by itself"
    with reader:
        assert reader.read() == "left behind\n"


def test_a_process_that_does_not_end_is_killed(run):
    reader, writer = map(os.fdopen, os.pipe(), "rw")

    assert run("sleep 1002 & sleep 1003", limit_secs=0.1, log=writer) == "killed after 0.1 s"
    with reader:
        assert reader.read() == ""
