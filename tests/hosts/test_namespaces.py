"""In a PID namespace of its own, but with an outer /proc, Headrace touches nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest


@pytest.fixture
def run_inside(tmp_path, monkeypatch):
    """Runs Python in a new PID namespace, whose end is the end of all in it; returns what it prints, from JSON."""

    runtime = tempfile.mkdtemp(prefix="hr", dir="/tmp")  # a socket's address is short
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", runtime)

    def run(code):
        program = tmp_path / "program.py"
        program.write_text(code)
        unshare = ["unshare", *([] if os.getuid() == 0 else ["--map-root-user"]), "--pid", "--fork", "--kill-child"]
        if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
            pytest.skip("no namespace of processes can be made here")
        command = [*unshare, sys.executable, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    yield run
    shutil.rmtree(runtime, ignore_errors=True)  # the manager ends with its namespace, and removes nothing


STRANGER = """
import json, os, subprocess
from headrace.hosts.system import MARK, kill_marked, kill_orphans, new_mark
from headrace.hosts.system import children, processes

def number_outside(process):
    "That /proc has for a process of this namespace."
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = next(line for line in open(f"/proc/{name}/status") if line.startswith("NSpid")).split()[1:]
            if numbers[-1] == str(process) and os.readlink(f"/proc/{name}/ns/pid") == os.readlink("/proc/self/ns/pid"):
                return int(name)
        except OSError:
            pass

mark = new_mark()
hosts = [subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: mark}) for _ in range(2)]
wanted = [number_outside(host.pid) for host in hosts]
strangers = []
for number in wanted:
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    strangers.append(subprocess.Popen(["sleep", "1000"], env={MARK: "another's"}))
kill_orphans()
kill_marked(mark)
seen = children() + list(processes())
alive = [process.poll() is None for process in hosts + strangers]
print(json.dumps([wanted == [one.pid for one in strangers], alive, seen]))
"""


def test_a_process_is_not_mistaken_for_one_with_its_number_in_an_outer_proc(run_inside):
    """A host's number in /proc is a stranger's here, and its owner's number there is a stranger's outside."""
    have_numbers, alive, seen = run_inside(STRANGER)
    assert have_numbers
    assert alive == [True] * 4
    assert seen == []
