"""Shared by the tests of placement: handlers that say where they load and compute, and ways to run them."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from glob import glob

import cloudpickle
import numpy
import pytest

from headrace import BatchingConfig, ModelHandler
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from toys import Events, run
from waiting import wait_until

ELSEWHERE = """
import pickle, sys
spec, elements, events, run = pickle.load(sys.stdin.buffer)
from headrace.runtime.open_worker import open_worker
worker = open_worker(spec)
outcomes = run(worker, elements, events)
worker.close()
pickle.dump((outcomes, list(events)), sys.stdout.buffer)
"""


class Model:
    """Has weights, and the process that loaded it; leaves a file for each process in which one is finalized."""

    def __init__(self, folder, guard=None):
        self.weights = numpy.full(100_000, 2)
        self.loader = os.getpid()
        self.folder = folder
        self.guard = guard

    def __del__(self):
        note(self.folder, "finalized")


class Homely(ModelHandler):
    """Predicts a triple for each example: its double, the process that has loaded the model, and the one that computes.

    Args:
        folder: for notes.
        load: makes the model.
        made: what ``load_model`` sets on the handler.
        computers: so many processes must have got a batch before any gives an answer.
        dies: whether a process that computes dies of it, "once" or "always".
        fits: there is memory for batches of this size.
        mappable: what the handler says about its model; False has a host load a shared one, rather than a worker.
    """

    def __init__(
        self, folder, load=Model, made="by load_model", computers=1, dies="", fits=100, mappable=None, **options
    ):
        super().__init__(**options)
        self.folder = folder
        self.load = load
        self.made_there = made
        self.computers = computers
        self.dies = dies
        self.fits = fits
        self.mappable = mappable

    def load_model(self):
        note(self.folder, "loaded")
        self.made = self.made_there
        return self.load(self.folder)

    def run_inference(self, batch, model, inference_args=None):
        assert self.made == self.made_there
        note(self.folder, "computed")
        if self.dies == "always" or (self.dies and len(noted(self.folder, "computed")) == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if len(batch) > self.fits:
            raise MemoryError(f"{len(batch)} do not fit")
        while len(set(noted(self.folder, "computed"))) < self.computers:
            time.sleep(0.002)
        return [(int(model.weights[0]) * example, model.loader, os.getpid()) for example in batch]


def note(folder, what):
    """Leaves a file that says that something has happened in this process."""
    (folder / f"{what}-{os.getpid()}-{os.urandom(4).hex()}").touch()


def noted(folder, what):
    """The processes in which it has happened, one entry per occurrence."""
    return [int(file.name.split("-")[1]) for file in sorted(folder.glob(f"{what}-*"))]


def guarded(folder):
    """A model that does not pickle."""
    return Model(folder, threading.Lock())


def unreadable(folder):
    """A model that pickles but does not unpickle."""

    class Unreadable(Model):
        def __reduce__(self):
            return int, ("no number",)

    return Unreadable(folder)


def from_file(folder):
    """A model whose weights its framework has mapped from a file."""
    numpy.full(1_000_000, 2).tofile(folder / "weights")
    model = Model(folder)
    model.weights = numpy.memmap(folder / "weights", int, "c")
    return model


def second_time(folder):
    """A model whose first load dies."""
    return os._exit(7) if len(list(folder.glob("loaded-*"))) < 2 else Model(folder)


class Home:
    """A test's runtime directory, and the workers and models that use it."""

    Model, guarded, unreadable = map(staticmethod, (Model, guarded, unreadable))
    from_file, second_time = map(staticmethod, (from_file, second_time))

    def __init__(self, folder, runtime, caplog):
        self.folder = folder
        self.runtime = runtime
        self._caplog = caplog
        self._stack = ExitStack()

    def handler(self, load=Model, **options):
        return Homely(self.folder, load, **options)

    def spec(self, handler, caught=(), **request):
        return catching(prepare(handler, InferenceRequest(batching=BatchingConfig(1, 1), **request)), caught)

    def open(self, spec):
        """Opens a worker and waits for its model; it is closed at the latest with the test."""
        worker = open_worker(spec)
        self._stack.callback(worker.close)
        worker.ready()
        return worker

    def run(self, spec, elements=(1,)):
        """Values and failures, and the events."""
        events = Events()
        return run(self.open(spec), elements, events), events

    def elsewhere(self, spec, elements=(1,), code=0):
        """The same in another process, which then ends; with another exit code, nothing."""
        content = cloudpickle.dumps((spec, list(elements), Events(), run))
        command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", ELSEWHERE]
        done = subprocess.run(command, input=content, capture_output=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr.decode()
        if code:
            return None
        outcomes, events = pickle.loads(done.stdout)
        return outcomes, Events(events)

    def begin_elsewhere(self, spec):
        """Starts another process that opens a worker."""
        content = cloudpickle.dumps((spec, [1], Events(), run))
        process = self._stack.enter_context(
            subprocess.Popen([sys.executable, "-c", ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        )
        self._stack.callback(process.kill)
        process.stdin.write(content)
        process.stdin.close()
        return process

    def noted(self, what):
        """The processes in which it has happened, one entry per occurrence."""
        return noted(self.folder, what)

    def logged(self):
        """The log messages about where models live."""
        return [one.getMessage() for one in self._caplog.records if one.name == "headrace.runtime.placement"]

    def close(self):
        """Closes all workers; returns whether the machine then holds nothing of theirs."""
        self._stack.close()
        return wait_until(lambda: not glob(f"{self.runtime}/*"))


@pytest.fixture
def opened(close_later):
    """Opens workers, and closes them at the end."""
    return lambda spec, *namespace: close_later(open_worker(spec, *namespace))


@pytest.fixture
def home(tmp_path, runtime, caplog):
    """Without garbage collections: the machine must release everything all the same, and the fixture waits for that."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    caplog.set_level(logging.INFO)
    gc.collect()
    gc.disable()
    home = Home(tmp_path, runtime, caplog)
    yield home
    home.close()
    gc.enable()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
