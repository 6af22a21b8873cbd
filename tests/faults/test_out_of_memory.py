"""The kernel itself kills a host that exceeds its memory, in a memory cgroup of the host and its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.large

LIMIT = 320 << 20
PROGRAM = Path(__file__).with_name("hungry.py")


@pytest.fixture
def new_group():
    """Makes memory cgroups within this process's own."""
    own, limit = find_own_group()
    made = []

    def make():
        folder = own / f"headrace-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no memory cgroup can be made here, which takes root and writable cgroups: {error}")
        made.append(folder)
        if not (folder / limit).exists():
            pytest.skip(f"memory is not controlled in cgroups here: there is no {folder / limit}")
        (folder / limit).write_text(str(LIMIT))
        return folder

    yield make
    for folder in made:
        folder.rmdir()


@pytest.fixture
def start_in(tmp_path, popen):
    """Starts Python in a group; what it logs comes into a file."""

    def start(group, *args):
        join = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), sys.executable, *args]
        with (tmp_path / "log").open("w") as log:
            return popen(join, stdout=subprocess.PIPE, stderr=log, text=True)

    return start


@pytest.fixture
def run_hungry(new_group, start_in, tmp_path):
    def run(**how):
        """The outcomes of the elements, and the log."""
        printed, _ = start_in(new_group(), str(PROGRAM), json.dumps(how)).communicate(timeout=120)
        return json.loads(printed or "null"), (tmp_path / "log").read_text()

    return run


def find_own_group():
    """This process's memory cgroup and the name of the file with its limit, in cgroups of either version."""
    entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controller: path.lstrip("/") for _, controllers, path in entries for controller in controllers.split(",")}
    if "memory" in paths:
        return Path("/sys/fs/cgroup/memory", paths["memory"]), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup", paths.get("", "")), "memory.max"


ERROR = (
    "the host was killed by SIGKILL, since the machine had run out of memory while it was running inference on "
    "element 13 (counted from 0) of a batch of 64."
)


def test_only_the_hungry_element_fails(run_hungry):
    outcomes, _ = run_hungry(count=64, examples=[13])
    assert outcomes == [["inference", 0, 13, ERROR] if n == 13 else 2 * n for n in range(64)]


def test_batches_that_are_too_large_become_smaller_and_no_row_fails(run_hungry):
    outcomes, logged = run_hungry(count=640, at_once=20)
    assert outcomes == [2 * n for n in range(640)]
    assert 2 <= logged.count("the machine had run out of memory") <= 15  # few batches were on their way, not all


def test_an_out_of_memory_kill_without_exception_handling_raises(run_hungry):
    outcomes, logged = run_hungry(count=64, examples=[13], on_failure="raise")
    assert outcomes is None
    assert f"HostDiedError: {ERROR}" in logged


def test_an_out_of_memory_kill_in_pre_or_postprocessing_fails_its_element_alone(run_hungry):
    outcomes, _ = run_hungry(count=64, before=13, after=40)
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, list)}
    assert {place: one[:2] for place, one in failures.items()} == {13: ["preprocessing", 0], 40: ["postprocessing", 0]}
    assert all("since the machine had run out of memory" in one[3] for one in failures.values())


EAT = "from headrace.testing import eat_memory; eat_memory(2 << 30)"


def test_out_of_memory_kills_elsewhere_do_not_explain_a_hosts_death(new_group, start_in, start_owner, census):
    owner = start_owner().reached()
    assert start_in(new_group(), "-c", EAT).wait(60) == -signal.SIGKILL
    [host] = census.hosts(owner.pid)
    os.kill(host, signal.SIGKILL)
    owner.go()
    assert owner.result() == [[n, 2 * n] for n in range(24)]
    assert "was killed by SIGKILL" in owner.file("stderr")
    assert "memory" not in owner.file("stderr")
