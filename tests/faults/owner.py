"""An owner for the tests of signals: predicts in a host, and is held at the moment that ``FAULTS_MOMENT`` names."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path

from moments import FOLDER, hold, wait_for

from headrace import BatchingConfig, Failure, predict
from headrace.testing import DoublingHandler

ELEMENTS = 24
BATCH = 4


class HeldHandler(DoublingHandler):
    """Is held in loading or in its second batch, if that is the moment; may start servers."""

    def load_model(self):
        if "FAULTS_SERVERS" in os.environ:
            subprocess.Popen(["sleep", "1001"])
            subprocess.Popen(["sleep", "1002"], start_new_session=True)
            subprocess.run(["sh", "-c", "setsid sleep 1003 & exit"], check=True)
        Path(FOLDER, "host has").write_text(" ".join(pieces_of_the_platform()))
        hold("load")
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        if BATCH in batch:
            hold("batch")
        Path(FOLDER, "batch").touch()
        return super().run_inference(batch, model, inference_args)


def pieces_of_the_platform():
    """The system calls that a poorer platform might lack."""
    places = {"memfd_create": os, "pidfd_open": os, "prctl": ctypes.CDLL(None)}
    return [name for name, place in places.items() if hasattr(place, name)]


def elements():
    """The elements; holds the owner once the first batch has been answered, as far as can be told."""
    for number in range(ELEMENTS):
        if number == BATCH and os.environ["FAULTS_MOMENT"] == "idle":
            wait_for("batch")
            hold("idle")
        yield number


def main():
    timeout = os.environ.get("FAULTS_TIMEOUT")
    outcomes = predict(
        HeldHandler(),
        elements(),
        on_failure="yield",
        batching=BatchingConfig(BATCH, BATCH),
        isolate=True,
        timeout=float(timeout) if timeout else None,
    )
    lines = [repr(one.error) if isinstance(one, Failure) else list(one[:2]) for one in outcomes]
    Path(FOLDER, "result").write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
