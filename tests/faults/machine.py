"""A worker process like an engine's: unpickles a session's specification, runs bundles, writes what came of them.

It, and whatever process has the model, is held at the moment that ``FAULTS_MOMENT`` names until it may go on.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path

import numpy

from headrace import Failure, ModelHandler
from headrace.runtime.observers import Everybody
from headrace.runtime.worker import open_worker

BATCH = 4
BUNDLE = 3 * BATCH


def note(what: str) -> None:
    """Leaves word that this process has come somewhere."""
    Path(os.environ["FAULTS_FOLDER"], f"{what}-{os.getpid()}-{time.monotonic_ns()}").touch()


def hold(moment: str) -> None:
    """Waits until it may go on, if this is the moment."""
    if os.environ.get("FAULTS_MOMENT") == moment:
        note("held")
        while not Path(os.environ["FAULTS_FOLDER"], "go").exists():
            time.sleep(0.002)


class Weights:
    """A model, some of which is large; it is held as it is exported, and as it is mapped."""

    def __init__(self) -> None:
        self.twos = numpy.full(1 << 18, 2)

    def __getstate__(self):
        hold("export")
        return self.__dict__

    def __setstate__(self, state):
        hold("attach")
        self.__dict__.update(state)


class Doubling(ModelHandler):
    """Doubles each example; keeps a record of its loads."""

    def load_model(self):
        note("load")
        hold("load")
        self.loaded = True
        return Weights()

    def run_inference(self, batch, model, inference_args=None):
        assert self.loaded
        if any(example % 1000 == BUNDLE for example in batch):
            hold("batch")
        return [int(model.twos[example]) * example for example in batch]


def main(first: int, bundles: int) -> None:
    """Runs so many bundles, from that element on; the first bundle alone before the moment called "idle"."""
    folder = Path(os.environ["FAULTS_FOLDER"])
    worker = open_worker(pickle.loads((folder / "spec").read_bytes()))
    outcomes = []
    for number in range(bundles):
        if number == 1:
            hold("idle")
        bundle = worker.bundle(Everybody())
        start = first + number * BUNDLE
        for element in range(start, start + BUNDLE):
            outcomes += bundle.add(element, element)
        outcomes += bundle.finish()
    hold("end")
    worker.close()
    Path(folder, f"result-{first}").write_text(json.dumps([line for one in outcomes for line in lines(one)]))


def lines(outcome):
    """Pairs of tags, and predictions or errors."""
    if isinstance(outcome, Failure):
        return [[outcome.tag, repr(outcome.error)]]
    return list(zip(outcome.tags, outcome.values, strict=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
