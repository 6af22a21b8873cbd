"""A/B: one PCollection goes to two models, and their answers are compared.

    python examples/ab_branches.py

Beam's options may follow, for example ``--direct_num_workers=2`` or another ``--runner``.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from headrace.beam import KeyedModelHandler, RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def train(folder: Path) -> tuple[str, str, list[Any], list[int]]:
    """Trains two models; returns their files, and rows with labels that neither has seen."""
    measurements, labels = load_breast_cancer(return_X_y=True)
    seen, unseen, seen_labels, unseen_labels = train_test_split(measurements, labels, random_state=0)
    regression = make_pipeline(StandardScaler(), LogisticRegression()).fit(seen, seen_labels)
    tree = DecisionTreeClassifier(random_state=0).fit(seen, seen_labels)
    (folder / "regression.pickle").write_bytes(pickle.dumps(regression))
    (folder / "tree.pickle").write_bytes(pickle.dumps(tree))
    return str(folder / "regression.pickle"), str(folder / "tree.pickle"), list(unseen), unseen_labels.tolist()


def build(
    pipeline: beam.Pipeline, model_a: str, model_b: str, rows: Sequence[Any], labels: Sequence[int]
) -> beam.PCollection:
    """The number of rows for each verdict: pairs such as ``("only A is right", 3)``.

    Each row is keyed by its number, so that its two answers can be joined again.
    """
    truth = pipeline | "Labels" >> beam.Create(enumerate(labels))
    data = pipeline | "Rows" >> beam.Create(enumerate(rows))
    answers_a = data | "Model A" >> RunInference(KeyedModelHandler(SklearnModelHandlerNumpy(model_a)))
    answers_b = data | "Model B" >> RunInference(KeyedModelHandler(SklearnModelHandlerNumpy(model_b)))
    return (
        {"truth": truth, "a": answers_a, "b": answers_b}
        | "Side by side" >> beam.CoGroupByKey()
        | "Judge" >> beam.Map(judge)
        | "Count" >> beam.combiners.Count.PerElement()
    )


def judge(numbered: tuple[int, dict[str, Iterable[Any]]]) -> str:
    """Who is right about one row."""
    _, found = numbered
    ((truth,), (a,), (b,)) = found["truth"], found["a"], found["b"]
    right = (a.inference == truth, b.inference == truth)
    return {
        (True, True): "both are right",
        (True, False): "only A is right",
        (False, True): "only B is right",
        (False, False): "both are wrong",
    }[right]


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, runs both models, prints the verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        model_a, model_b, rows, labels = train(Path(folder))
        with beam.Pipeline(argv=[RUNNER, *(sys.argv[1:] if argv is None else argv)]) as pipeline:
            verdicts = build(pipeline, model_a, model_b, rows, labels)
            _ = verdicts | "Print" >> beam.MapTuple(lambda verdict, count: print(f"{verdict}: {count}"))


if __name__ == "__main__":
    main()
