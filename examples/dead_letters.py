"""Dead letters: bad records are set aside with their errors, and no good record is lost.

    python examples/dead_letters.py

Lines of text come in, each with its time. They are parsed (preprocessing), classified (inference) and priced
(postprocessing); each step fails for some of them. Windows are one minute long. Beam's options may follow.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from headrace.beam import PredictionResult, RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"

# (second, line): the measurements of a flower
LINES = [
    (5, "5.1, 3.5, 1.4, 0.2"),
    (20, "4.9, 3.0, 1.4, 0.2"),
    (30, "a smudge, 3.0, 1.4, 0.2"),  # no number: cannot be parsed
    (55, "nan, 2.9, 4.3, 1.3"),  # parsed, but the model refuses it
    (65, "6.2, 2.9, 4.3, 1.3"),
    (80, "6.3, 3.3, 6.0, 2.5"),  # a virginica: has no price
    (100, "5.7, 2.8, 4.1, 1.3"),
]

PRICES = {"setosa": 2.50, "versicolor": 3.20}


class DeadLetter(NamedTuple):
    """A failure, ready to be written to a table."""

    minute: int
    stage: str
    element: str
    error: str


def train(folder: Path) -> str:
    """Trains a model; returns its file."""
    flowers = load_iris()
    model = LogisticRegression(max_iter=1000).fit(flowers.data, flowers.target_names[flowers.target])
    (folder / "iris.pickle").write_bytes(pickle.dumps(model))
    return str(folder / "iris.pickle")


def build(
    pipeline: beam.Pipeline, model: str, lines: Sequence[tuple[int, str]]
) -> tuple[beam.PCollection, beam.PCollection]:
    """Two PCollections: (minute, price) pairs, and dead letters."""
    handler = SklearnModelHandlerNumpy(model).with_preprocess_fn(parse).with_postprocess_fn(price)
    timed = (
        pipeline
        | "Lines" >> beam.Create(lines)
        | "Times" >> beam.MapTuple(lambda second, line: TimestampedValue(line, second))
        | "Minutes" >> beam.WindowInto(FixedWindows(60))
    )
    prices, failed = timed | "Predict" >> RunInference(handler).with_exception_handling()
    dead_letters = (
        failed.failed_preprocessing[0] | "Not parsed" >> beam.Map(describe, "parsing"),
        failed.failed_inferences | "Not classified" >> beam.Map(describe, "classification"),
        failed.failed_postprocessing[0] | "Not priced" >> beam.Map(describe, "pricing"),
    ) | "Dead letters" >> beam.Flatten()
    return prices | "Minute" >> beam.Map(with_minute), dead_letters


def parse(line: str) -> Any:
    """The numbers in a line; raises ValueError if a field is none."""
    return np.array([float(field) for field in line.split(",")])


def price(result: PredictionResult) -> float:
    """The price of a species; raises KeyError if it has none."""
    return PRICES[str(result.inference)]


def describe(
    record: tuple[Any, tuple[Any, str, list[str]]], stage: str, window: Any = beam.DoFn.WindowParam
) -> DeadLetter:
    """A row from a record: the element (a batch of one where the model failed) and (type, repr, traceback)."""
    element, (_, error, _) = record
    return DeadLetter(minute_of(window), stage, str(element), error)


def with_minute(price: float, window: Any = beam.DoFn.WindowParam) -> tuple[int, float]:
    """A price with its window."""
    return minute_of(window), price


def minute_of(window: Any) -> int:
    """Where a window begins, in minutes."""
    return int(window.start.seconds()) // 60


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, runs, prints prices and dead letters."""
    with tempfile.TemporaryDirectory() as folder:
        model = train(Path(folder))
        with beam.Pipeline(argv=[RUNNER, *(sys.argv[1:] if argv is None else argv)]) as pipeline:
            prices, dead_letters = build(pipeline, model, LINES)
            _ = prices | "Print prices" >> beam.MapTuple(lambda minute, price: print(f"minute {minute}: {price:.2f}"))
            _ = dead_letters | "Print dead letters" >> beam.Map(
                lambda one: print(f"minute {one.minute}: {one.stage} failed: {one.error:.70}")
            )


if __name__ == "__main__":
    main()
