"""An owner that tests disturb: predicts in a host, and is held in its second batch until it may go on."""

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path

from headrace import BatchingConfig, Failure, predict
from headrace.testing import DoublingHandler

FOLDER = Path(os.environ["FAULTS_FOLDER"])
BATCH = 4


class HeldHandler(DoublingHandler):
    def load_model(self):
        (FOLDER / "host has").write_text(" ".join(pieces_of_the_platform()))
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        if BATCH in batch:
            (FOLDER / "held").touch()
            while not (FOLDER / "go").exists():
                time.sleep(0.002)
        return super().run_inference(batch, model, inference_args)


def pieces_of_the_platform():
    """The system calls that a poorer platform might lack."""
    places = {"memfd_create": os, "pidfd_open": os, "prctl": ctypes.CDLL(None)}
    return [name for name, place in places.items() if hasattr(place, name)]


def main():
    timeout = os.environ.get("FAULTS_TIMEOUT")
    outcomes = predict(
        HeldHandler(),
        range(24),
        on_failure="yield",
        batching=BatchingConfig(BATCH, BATCH),
        isolate=True,
        timeout=float(timeout) if timeout else None,
    )
    lines = [repr(one.error) if isinstance(one, Failure) else list(one[:2]) for one in outcomes]
    (FOLDER / "result").write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
