"""Handwritten digits on a Flink cluster: ``python engines/digits_on_flink.py``; see README.md beside this file.

Headrace with one model for the machine, and Beam's own RunInference with ``large_model=True`` beside it: the same rows,
some of them spoilt, through the same model. Exits with 1 if Headrace's results are not right.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command import run_kinds
from job import Job
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
TIMEOUT_SECS = 8.0
TIMED_BATCH = 4
"""Small, as the row that hangs is looked for in it: the time limit passes once for each half."""
SPOILT = frozenset([7, 130, 399, 640, 898, 899, 1204, 1500, 1796])
"""Rows with something that is no number."""
STUCK = 1000
"""The row over which the model hangs, where there is a timeout."""


class Digits(Recorded, SklearnModelHandlerNumpy):
    """Headrace's handler; it takes its time, and hangs over one row if told to."""

    def __init__(self, path: str, delay_secs: float, stuck: int | None = None, batch: int = BATCH) -> None:
        super().__init__(path, min_batch_size=batch, max_batch_size=batch)
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


def make(kind: str, folder: Path, words: argparse.Namespace) -> Job:
    """The job of a kind, or of two in one: ``keyed, timeout``."""
    path = folder / "model.pickle"
    expected, letters = train(path), set(SPOILT)
    if "timeout" in kind:
        del expected[STUCK]
        letters.add(STUCK)
    infer = of_beam(path, words) if kind == "beam" else of_headrace(path, kind, words)
    elements = partial(rows, keyed="keyed" in kind)
    side = "beam" if kind == "beam" else "headrace"
    return Job(f"digits, {kind}", side, elements, infer, int, expected, frozenset(letters))


def of_headrace(path: Path, kind: str, words: argparse.Namespace) -> Any:
    """Makes Headrace's RunInference."""
    is_timed = "timeout" in kind

    def infer() -> Any:
        timed = (STUCK, TIMED_BATCH) if is_timed else ()
        handler: Any = Digits(str(path), words.delay, *timed)
        if "keyed" in kind:
            handlers = {key: Digits(str(path), words.delay, *timed) for key in ("even", "odd")}
            handler = KeyedModelHandler([KeyModelMapping([key], one) for key, one in handlers.items()])
        placement = PlacementConfig("machine", linger_secs=words.linger)
        transform = RunInference(handler, placement=placement, model_identifier="digits")
        return transform.with_exception_handling(timeout=TIMEOUT_SECS if is_timed else None)

    return infer


def of_beam(path: Path, words: argparse.Namespace) -> Any:
    """Makes Beam's."""
    from apache_beam.ml.inference import base, sklearn_inference

    class OnBeam(Recorded, sklearn_inference.SklearnModelHandlerNumpy):
        delay_secs = words.delay

    def infer() -> Any:
        handler = OnBeam(str(path), min_batch_size=BATCH, max_batch_size=BATCH, large_model=True)
        return base.RunInference(handler, model_identifier="digits").with_exception_handling()

    return infer


if __name__ == "__main__":
    run_kinds(__doc__, ("plain", "timeout", "keyed", "killed", "beam"), make)
