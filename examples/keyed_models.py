"""Keys choose the model: one transform, four models, at most two of them in memory at a time.

With ``grouped=True`` the pairs go through a GroupByKey first, which brings those of one key together on one worker.
Otherwise, with many models, memory for few of them, and many small bundles, models are loaded again and again.

    python examples/keyed_models.py

Beam's options may follow.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.naive_bayes import GaussianNB

from headrace.beam import KeyedModelHandler, KeyModelMapping, PredictionResult, RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"

DATA = {"iris": load_iris, "wine": load_wine, "digits": load_digits, "cancer": load_breast_cancer}

# The data set of each key's rows; a model may serve several keys.
KEYS = {
    "iris": "iris",
    "wine-north": "wine",
    "wine-south": "wine",
    "digits": "digits",
    "clinic": "cancer",
    "practice": "cancer",
}


def train(folder: Path) -> dict[str, str]:
    """Trains a model for each data set, each in its file."""
    for name, load in DATA.items():
        model = GaussianNB().fit(*load(return_X_y=True))
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(model))
    return {name: str(folder / f"{name}.pickle") for name in DATA}


def make_handler(models: dict[str, str]) -> KeyedModelHandler[Any, Any, Any, Any]:
    """The handler for (key, row) pairs. A key may not be in two mappings."""
    mappings = [
        KeyModelMapping(["iris"], SklearnModelHandlerNumpy(models["iris"])),
        KeyModelMapping(["wine-north", "wine-south"], SklearnModelHandlerNumpy(models["wine"])),
        KeyModelMapping(["digits"], SklearnModelHandlerNumpy(models["digits"])),
        KeyModelMapping(["clinic", "clinic", "practice"], SklearnModelHandlerNumpy(models["cancer"])),
    ]
    return KeyedModelHandler(mappings, max_models_per_worker_hint=2)


def build(
    pipeline: beam.Pipeline, models: dict[str, str], rows_for_each_key: int, *, grouped: bool = False
) -> beam.PCollection:
    """The number of rows for each key and predicted class: pairs such as ``(("iris", "setosa"), 50)``."""
    pairs = pipeline | "Keys" >> beam.Create(list(KEYS)) | "Rows" >> beam.FlatMap(rows_of, rows_for_each_key)
    if grouped:
        pairs = pairs | "Together by key" >> beam.GroupByKey() | "Apart again" >> beam.FlatMapTuple(each)
    return (
        pairs
        | "Predict" >> RunInference(make_handler(models))
        | "Name" >> beam.MapTuple(name_class)
        | "Count" >> beam.combiners.Count.PerElement()
    )


def rows_of(key: str, count: int) -> Iterator[tuple[str, Any]]:
    """Some (key, row) pairs, spread over the key's data, which is sorted by class."""
    rows, _ = DATA[KEYS[key]](return_X_y=True)
    return ((key, rows[place]) for place in np.linspace(0, len(rows) - 1, count, dtype=int))


def each(key: str, rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Turns groups into (key, row) pairs again."""
    return ((key, row) for row in rows)


def name_class(key: str, result: PredictionResult) -> tuple[str, str]:
    """The predicted class by its name."""
    return key, str(DATA[KEYS[key]]().target_names[result.inference])


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, predicts, prints the counts."""
    with tempfile.TemporaryDirectory() as folder:
        models = train(Path(folder))
        with beam.Pipeline(argv=[RUNNER, *(sys.argv[1:] if argv is None else argv)]) as pipeline:
            counts = build(pipeline, models, rows_for_each_key=60)
            _ = (
                counts
                | "Together" >> beam.combiners.ToList()
                | "Sort" >> beam.FlatMap(sorted)
                | "Print" >> beam.MapTuple(lambda named, count: print(f"{named[0]}: {count} x {named[1]}"))
            )


if __name__ == "__main__":
    main()
