"""Shared by the fault tests: a census of what they leave behind, ways to wait, owners in their own processes."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import cloudpickle
import pytest

from headrace import BatchingConfig
from headrace.machine.status import machine_status
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from waiting import wait_until

sys.path.append(str(Path(__file__).parent))

import census as _census
import engine_worker as _program


@pytest.fixture(autouse=True)
def census(monkeypatch, tmp_path_factory):
    """Fails the test if it leaves anything behind."""
    temporary = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    census = _census.Census(temporary)
    monkeypatch.setenv(_census.TOKEN, census.token)
    yield census
    try:
        if census.leftovers():
            gc.collect()
        assert wait_until(lambda: not census.leftovers()) or census.leftovers() == []
    finally:
        census.kill_all()


@pytest.fixture
def seed(request):
    """The same each time, unless the environment has another one; ``make fuzz`` tries any."""
    seed = int(os.environ.get("HEADRACE_SEED", zlib.crc32(request.node.name.encode())))
    print(f"HEADRACE_SEED={seed}")
    return seed


@pytest.fixture(autouse=True)
def _travels(module_travels):
    """Classes defined in these test modules are pickled by value, so that hosts can have them."""


class Owner:
    """A process in which ``predict`` runs: ``owner.py``, held in its second batch until it is released."""

    def __init__(self, folder, timeout):
        self._folder = folder
        environment = {"FAULTS_FOLDER": str(folder), "FAULTS_TIMEOUT": str(timeout or "")}
        command = [sys.executable, Path(__file__).with_name("owner.py")]
        with (folder / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, stderr=errors, start_new_session=True
            )
        self.pid = self.process.pid

    def reached(self):
        assert wait_until((self._folder / "held").exists), self.file("stderr")
        return self

    def go(self):
        (self._folder / "go").touch()

    def result(self):
        assert self.process.wait(120) == 0, self.file("stderr")
        return json.loads(self.file("result"))

    def file(self, name):
        return (self._folder / name).read_text()


@pytest.fixture
def start_owner(tmp_path):
    """Starts owners; those that still run at the end are killed."""
    owners = []

    def start(timeout=None):
        folder = tmp_path / str(len(owners))
        folder.mkdir()
        owners.append(Owner(folder, timeout))
        return owners[-1]

    yield start
    for owner in owners:
        owner.process.kill()
        owner.process.wait()


APART = 10**5
"""Between the first elements of two workers."""


class Machine:
    """Worker processes (``engine_worker.py``) that share a model, and the processes through which they share it."""

    def __init__(self, folder, census):
        self.folder = folder
        self.program = _program
        self.runtime = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))  # a socket's address is short
        self._census = census
        self.workers = []

    def spec(self, kind, handler="Doubling"):
        """The model is mapped into workers, or each has a host over it, or the machine has two hosts.

        A worker loads what is mapped into workers, or, of the kind "loader", a host of the manager's.
        """
        options = {"model_copies": 2} if kind == "copies" else {"large_model": True}
        batching = BatchingConfig(self.program.BATCH, self.program.BATCH)
        request = InferenceRequest(batching=batching, timeout_secs=20.0 if kind == "timeout" else None)
        made = getattr(self.program, handler)(**options)
        made.mappable = False if kind == "loader" else None
        return catching(prepare(made, request), Exception)

    def start(self, spec, moment="never", workers=3, bundles=3):
        """Starts workers, each with elements of its own, which are held at that moment."""
        (self.folder / "spec").write_bytes(cloudpickle.dumps(spec))
        environment = {**os.environ, "FAULTS_FOLDER": str(self.folder), "FAULTS_MOMENT": moment}
        for first in range(APART * len(self.workers), APART * (len(self.workers) + workers), APART):
            command = [sys.executable, self.program.__file__, str(first), str(bundles)]
            with (self.folder / f"stderr-{first}").open("w") as errors:
                worker = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)
            self.workers.append(worker)
        self.expected = bundles * self.program.BUNDLE

    def notes(self, what):
        """The processes that reached a moment, each as often as it did."""
        return [int(file.name.split("-")[1]) for file in sorted(self.folder.glob(f"{what}-*"))]

    def held(self, count=1):
        assert wait_until(lambda: len(set(self.notes("held"))) >= count), self.stderr()
        return sorted(set(self.notes("held")))

    def leased(self):
        assert wait_until(lambda: self._leases() == [len(self.workers)]), self.stderr()

    def _leases(self):
        return [model.clients for manager in machine_status().managers for model in manager.models]

    def manager(self):
        [manager] = self._census.managers()
        return manager

    def pids(self):
        return [worker.pid for worker in self.workers]

    def go(self):
        (self.folder / "go").touch()

    def end(self, killed=()):
        """Waits until all workers have ended; each that has not been killed has the right results, once each."""
        assert wait_until(lambda: all(self._is_through(worker) for worker in self.workers)), self.stderr()
        (self.folder / "leave").touch()
        for number, worker in enumerate(self.workers):
            code = worker.wait(120)
            if worker.pid in killed:
                assert code == -signal.SIGKILL
            else:
                assert code == 0, self.stderr()[-3000:]
                assert self.result(number) == [[n, 2 * n] for n in self.elements(number)]
        self.workers.clear()

    def _is_through(self, worker):
        return worker.pid in self.notes("finished") or worker.poll() is not None

    def result(self, number):
        """What its finished bundles gave."""
        return sorted(pair for line in self._result(number) for pair in json.loads(line))

    def bundles(self, number):
        return len(self._result(number))

    def _result(self, number):
        file = self.folder / f"result-{number * APART}"
        return [line for line in file.read_text().splitlines(True) if line.endswith("\n")] if file.exists() else []

    def elements(self, number):
        return range(number * APART, number * APART + self.expected)

    def stderr(self):
        return "".join(file.read_text() for file in sorted(self.folder.glob("stderr-*")))

    def assert_vacated(self):
        """Neither socket nor lock file, nor the directory itself, nor a process is left."""
        assert wait_until(lambda: not self._census.processes()), self._census.processes()
        assert wait_until(lambda: not self.runtime.exists()), list(self.runtime.iterdir())

    def assert_vacated_by_the_next(self, spec):
        """As above, after a killed manager whose clients needed no new one: the next manager removes its files."""
        assert wait_until(lambda: not self._census.processes()), self._census.processes()
        self.start(spec, workers=1, bundles=1)
        self.end()
        self.assert_vacated()


@pytest.fixture
def machine(tmp_path, monkeypatch, census):
    """A machine of workers; however a test ends it, the next workers must be able to start, and leave nothing."""
    machine = Machine(tmp_path, census)
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(machine.runtime))
    cloudpickle.register_pickle_by_value(machine.program)
    yield machine
    cloudpickle.unregister_pickle_by_value(machine.program)
    for worker in machine.workers:
        worker.kill()
        worker.wait()
    shutil.rmtree(machine.runtime, ignore_errors=True)
