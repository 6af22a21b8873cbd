"""The handler that the Java pipeline names, and the model that it asks: species of irises, by their measurements.

``python flowers.py model.pkl flowers.csv`` trains the model and writes measurements to predict for.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy

from headrace import KeyedModelHandler, ModelHandler
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

SPECIES = ("setosa", "versicolor", "virginica")


def make(model: str) -> ModelHandler[Any, Any, Any]:
    """A handler for pairs of a name and a row of measurements; predicts pairs of the name and a row."""
    handler = SklearnModelHandlerNumpy(model, method="predict_proba")
    return (
        KeyedModelHandler(handler)
        .with_preprocess_fn(lambda pair: (pair[0], numpy.array(pair[1], float)))
        .with_postprocess_fn(lambda pair: (pair[0], as_row(pair[1].inference)))
    )


def as_row(shares: Any) -> beam.Row:
    """What Java gets."""
    best = int(numpy.argmax(shares))
    return beam.Row(species=SPECIES[best], probability=float(shares[best]))


def main(model: str, flowers: str) -> None:
    """Trains on every other flower."""
    from sklearn.datasets import load_iris  # noqa: PLC0415 - workers need neither
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    measurements, species = load_iris(return_X_y=True)
    trained = LogisticRegression(max_iter=1000).fit(measurements[::2], species[::2])
    Path(model).write_bytes(pickle.dumps(trained))
    lines = [",".join([f"flower {number}", *map(str, row)]) for number, row in enumerate(measurements)]
    Path(flowers).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
