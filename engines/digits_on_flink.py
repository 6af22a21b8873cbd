"""Handwritten digits on a Flink cluster: ``python engines/digits_on_flink.py``; see README.md beside this file.

Headrace with one model for the machine, and Beam's own RunInference with ``large_model=True`` beside it: the same rows,
some of them spoilt, through the same model. Exits with 1 if Headrace's results are not right.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flink import up
from fetch import EngineError
from job import Job, Report, look_after, run
from recording import Recorded
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headrace import PlacementConfig
from headrace.beam import KeyedModelHandler, KeyModelMapping, RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

BATCH = 16
HANGS_SECS = 600.0
TIMEOUT_SECS = 3.0
SPOILT = frozenset([7, 130, 399, 640, 898, 899, 1204, 1500, 1796])
"""Rows with something that is no number."""
STUCK = 1000
"""The row over which the model hangs, where there is a timeout."""


class Digits(Recorded, SklearnModelHandlerNumpy):
    """Headrace's handler; it takes its time, and hangs over one row if told to."""

    def __init__(self, path: str, delay_secs: float, stuck: int | None = None, **options: Any) -> None:
        super().__init__(path, min_batch_size=BATCH, max_batch_size=BATCH, **options)
        self.delay_secs = delay_secs
        self._stuck = stuck

    def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> Any:
        """See ``Recorded``."""
        if any(row[0] == self._stuck for row in batch):
            time.sleep(HANGS_SECS)
        return super().run_inference(batch, model, inference_args)


def rows(part: int, *, parts: int, keyed: bool = False) -> Iterator[Any]:
    """A part of the digits, each a number and 64 pixels; with ``keyed``, with one of two keys."""
    images, _ = load_digits(return_X_y=True)
    for number in range(part, len(images), parts):
        row = np.concatenate([[number], images[number]])
        if number in SPOILT:
            row[12] = np.nan
        yield (("even", "odd")[number % 2], row) if keyed else row


def train(path: Path) -> dict[int, int]:
    """A model in a file; returns what it says of each row that is not spoilt."""
    images, labels = load_digits(return_X_y=True)
    numbered = np.column_stack([np.arange(len(images)), images])
    pixels = ColumnTransformer([("pixels", "passthrough", slice(1, None))])
    model = make_pipeline(pixels, StandardScaler(), LogisticRegression(max_iter=1000)).fit(numbered, labels)
    path.write_bytes(pickle.dumps(model))
    said = model.predict(numbered)
    return {number: int(said[number]) for number in range(len(images)) if number not in SPOILT}


def of_headrace(path: Path, kind: str, delay_secs: float, linger_secs: float) -> Job:
    """The job with Headrace; ``kind`` is plain, timeout or keyed."""
    stuck = STUCK if kind == "timeout" else None
    placement = PlacementConfig("machine", linger_secs=linger_secs)
    expected = train(path)
    expected.pop(stuck or -1, None)

    def infer() -> Any:
        handler: Any = Digits(str(path), delay_secs, stuck)
        if kind == "keyed":
            handlers = {key: Digits(str(path), delay_secs) for key in ("even", "odd")}
            handler = KeyedModelHandler([KeyModelMapping([key], one) for key, one in handlers.items()])
        transform = RunInference(handler, placement=placement, model_identifier="digits")
        return transform.with_exception_handling(timeout=TIMEOUT_SECS if kind == "timeout" else None)

    letters = SPOILT | ({stuck} if stuck else frozenset())
    return Job(f"digits, {kind}", "headrace", partial(rows, keyed=kind == "keyed"), infer, int, expected, letters)


def of_beam(path: Path, delay_secs: float) -> Job:
    """The same with Beam's own."""
    from apache_beam.ml.inference.base import RunInference as BeamsRunInference
    from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy as BeamsHandler

    class BeamsDigits(Recorded, BeamsHandler):
        pass

    BeamsDigits.delay_secs = delay_secs
    expected = train(path)

    def infer() -> Any:
        handler = BeamsDigits(str(path), min_batch_size=BATCH, max_batch_size=BATCH, large_model=True)
        return BeamsRunInference(handler, model_identifier="digits").with_exception_handling()

    return Job("digits, plain", "beam", rows, infer, int, expected, SPOILT)


def main() -> None:
    """Runs the kinds asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["plain", "timeout", "keyed", "killed", "beam"])
    parser.add_argument("--name", default="flink", help="of the cluster; it is started if it does not run")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that each batch takes longer")
    parser.add_argument("--linger", type=float, default=20.0, help="seconds that a model stays when nobody uses it")
    words = parser.parse_args()
    try:
        cluster = up(words.name)
    except EngineError as error:
        sys.exit(f"{words.name}: {error}")
    bad: list[Report] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pickle"
        for kind in words.kinds:
            if kind == "beam":
                report = run(cluster, of_beam(path, words.delay))
            else:
                job = of_headrace(path, "plain" if kind == "killed" else kind, words.delay, words.linger)
                report = run(cluster, job, kill="tm2" if kind == "killed" else None)
            look_after(cluster, report, words.linger + 15)
            print(f"\n{report}\n", flush=True)
            if kind != "beam" and report.problems:
                bad.append(report)
    sys.exit(len(bad) > 0)


if __name__ == "__main__":
    main()
