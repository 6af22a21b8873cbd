"""Sequence: the first model's predictions decide what the second one gets.

    python examples/sequence.py

A first model looks at ten measurements of a tissue sample and gives the probability of cancer. Samples that it does not
clear go on to a second model, which looks at all thirty. Beam's options may follow.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headrace.beam import KeyedModelHandler, PredictionResult, RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"

MALIGNANT = 0  # the data set's label
CLEARED_BELOW = 0.02


def train(folder: Path) -> tuple[str, str, list[Any]]:
    """Trains two models; returns their files, and samples that neither has seen."""
    measurements, labels = load_breast_cancer(return_X_y=True)
    seen, unseen, seen_labels, _ = train_test_split(measurements, labels, random_state=0)
    first_ten = make_column_transformer((StandardScaler(), slice(0, 10)))
    screening = make_pipeline(first_ten, LogisticRegression()).fit(seen, seen_labels)
    diagnosis = RandomForestClassifier(n_estimators=50, random_state=0).fit(seen, seen_labels)
    (folder / "screening.pickle").write_bytes(pickle.dumps(screening))
    (folder / "diagnosis.pickle").write_bytes(pickle.dumps(diagnosis))
    return str(folder / "screening.pickle"), str(folder / "diagnosis.pickle"), list(unseen)


def build(pipeline: beam.Pipeline, screening: str, diagnosis: str, samples: Sequence[Any]) -> beam.PCollection:
    """(number of the sample, 0 for malignant or 1 for benign), for samples that the screening does not clear."""
    first = SklearnModelHandlerNumpy(screening, inference_fn=probability_of_cancer)
    second = SklearnModelHandlerNumpy(diagnosis)
    return (
        pipeline
        | "Samples" >> beam.Create(enumerate(samples))
        | "Screening" >> RunInference(KeyedModelHandler(first))
        | "Not cleared" >> beam.FlatMapTuple(not_cleared)
        | "Diagnosis" >> RunInference(KeyedModelHandler(second))
        | "Label" >> beam.MapTuple(lambda number, result: (number, int(result.inference)))
    )


def probability_of_cancer(model: Any, batch: Sequence[Any], _: dict[str, Any] | None) -> Any:
    """The first model's call: a probability in place of a label."""
    return model.predict_proba(np.stack(batch))[:, MALIGNANT]


def not_cleared(number: int, result: PredictionResult) -> list[tuple[int, Any]]:
    """Between the models: drops cleared samples, and passes on the measurements of the others."""
    return [] if result.inference < CLEARED_BELOW else [(number, result.example)]


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, runs both models one after the other, prints how many samples reached each."""
    with tempfile.TemporaryDirectory() as folder:
        screening, diagnosis, samples = train(Path(folder))
        with beam.Pipeline(argv=[RUNNER, *(sys.argv[1:] if argv is None else argv)]) as pipeline:
            diagnoses = build(pipeline, screening, diagnosis, samples)
            _ = (
                diagnoses
                | "Name" >> beam.MapTuple(lambda _, label: "malignant" if label == MALIGNANT else "benign")
                | "Count" >> beam.combiners.Count.PerElement()
                | "Print" >> beam.MapTuple(lambda name, count: print(f"second model: {count} {name}"))
            )
        print(f"{len(samples)} samples went to the first model")


if __name__ == "__main__":
    main()
