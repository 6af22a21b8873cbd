"""A worker process like an engine's: unpickles a session's specification, runs bundles, writes the outcomes.

It, and whatever process has the model, is held at the moment that ``FAULTS_MOMENT`` names until it may go on.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path

from headrace import Failure, ModelHandler
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker

BATCH = 4
BUNDLE = 3 * BATCH
REFUSED = 50
"""Of so many examples, a handler of that kind refuses one."""


def note(what: str) -> None:
    Path(os.environ["FAULTS_FOLDER"], f"{what}-{os.getpid()}-{time.monotonic_ns()}").touch()


def hold(moment: str) -> None:
    if os.environ.get("FAULTS_MOMENT") == moment:
        note("held")
        wait_for("go")


def wait_for(*names: str) -> None:
    """Waits until there is one of these files."""
    while not any(Path(os.environ["FAULTS_FOLDER"], name).exists() for name in names):
        time.sleep(0.002)


class Weights:
    """A model, some of which is large; it is held as it is exported, and as it is mapped."""

    def __init__(self, twos):
        self.twos = twos

    def __reduce_ex__(self, protocol):
        hold("export")
        return attached, (pickle.PickleBuffer(self.twos),)


def attached(memory):
    hold("attach")
    return Weights(memory)


class Doubling(ModelHandler):
    """Doubles each example; keeps a record of its loads."""

    def load_model(self):
        note("load")
        hold("load")
        self.loaded = True
        return Weights(bytearray(b"\2" * (1 << 20)))

    def run_inference(self, batch, model, inference_args=None):
        assert self.loaded
        if any(example % 1000 == BUNDLE for example in batch):
            hold("batch")
        return [model.twos[example % len(model.twos)] * example for example in batch]


class Refusing(Doubling):
    """Refuses one example in so many; a load takes long enough that it can be disturbed."""

    def load_model(self):
        model = super().load_model()
        time.sleep(0.1)
        return model

    def run_inference(self, batch, model, inference_args=None):
        if any(example % REFUSED == 0 for example in batch):
            raise ValueError("refused")
        time.sleep(0.001)
        return super().run_inference(batch, model)


def main(first: int, bundles: int) -> None:
    """Runs so many bundles, from that element on; the first one before the moment called "idle"."""
    folder = Path(os.environ["FAULTS_FOLDER"])
    worker = open_worker(pickle.loads((folder / "spec").read_bytes()))
    with Path(folder, f"result-{first}").open("w") as results:
        for number in range(bundles):
            if number == 1:
                hold("idle")
            outcomes = run(worker.bundle(FanOut()), range(first + number * BUNDLE, first + (number + 1) * BUNDLE))
            print(json.dumps(outcomes), file=results, flush=True)
            if (folder / "enough").exists():
                break
    note("finished")
    wait_for("leave", "enough")  # the last worker to leave takes the model along, and others may not have come yet
    worker.close()


def run(bundle, elements):
    outcomes = [outcome for element in elements for outcome in bundle.add(element, element)]
    pairs = []
    for one in outcomes + list(bundle.finish()):
        pairs += [(one.tag, repr(one.error))] if isinstance(one, Failure) else zip(one.tags, one.values, strict=True)
    return pairs


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
