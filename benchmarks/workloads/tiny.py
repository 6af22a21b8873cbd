"""A model so small that the way of a row through the transform is nearly all there is to measure."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy as BeamHandler
from goals import Goal, ratio_of_sides
from measure import BEAM, HEADRACE, Case
from sklearn.linear_model import LogisticRegression

from headrace.beam import RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy as Handler

TITLE = "200,000 rows of 20 float64 through a logistic regression (scikit-learn)"

GOALS = [
    Goal("Tiny rows in batches of 100: wall time, Headrace / Beam", ratio_of_sides("batches of 100"), at_most=1.0),
    Goal("Tiny rows in adaptive batches: wall time, Headrace / Beam", ratio_of_sides("adaptive batches"), at_most=0.8),
]

_COLUMNS = 20
_CHUNKS = 20

_BATCHING: dict[str, dict[str, Any]] = {
    "adaptive batches": {},
    "batches of 1,000": {"min_batch_size": 1000, "max_batch_size": 1000},
    "batches of 100": {"min_batch_size": 100, "max_batch_size": 100},
}


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """One for each way of batching; predictions are labels and must be equal exactly."""
    rows = 2_000 if quick else 200_000
    model = folder / "logistic_regression.pickle"
    model.write_bytes(pickle.dumps(trained()))
    for name, batching in _BATCHING.items():
        yield Case(
            name=name,
            rows=rows,
            source=lambda: beam.Create(range(_CHUNKS)) | beam.FlatMap(make_rows, rows // _CHUNKS),
            sides={
                HEADRACE: lambda options=batching, **more: RunInference(Handler(str(model), **options), **more),
                BEAM: lambda options=batching: BeamRunInference(BeamHandler(str(model), **options)),
            },
        )


def make_rows(chunk: int, count: int) -> Iterator[np.ndarray]:
    """The rows of one chunk, the same in every run."""
    return iter(np.random.default_rng(chunk).standard_normal((count, _COLUMNS)))


def trained() -> LogisticRegression:
    """The model, the same in every run."""
    rows = np.random.default_rng(12345).standard_normal((2_000, _COLUMNS))
    return LogisticRegression().fit(rows, rows[:, :5].sum(axis=1) > 0)
