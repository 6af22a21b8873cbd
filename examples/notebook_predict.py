"""Without a pipeline: ``headrace.predict`` runs a handler over any iterable, as the transform would.

    python examples/notebook_predict.py

What cannot be predicted comes out as a Failure in its element's place; its neighbours are predicted all the same.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine
from sklearn.linear_model import LinearRegression

import headrace
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy


def train(folder: Path) -> str:
    """Trains a model that predicts the alcohol of a wine from its other measurements; returns its file."""
    wines = load_wine().data
    (folder / "alcohol.pickle").write_bytes(pickle.dumps(LinearRegression().fit(wines[:, 1:], wines[:, 0])))
    return str(folder / "alcohol.pickle")


def guess_alcohol(model: str, wines: Iterable[np.ndarray]) -> Iterator[float | headrace.Failure]:
    """The alcohol of each wine in percent, in order; wines are read as they are needed."""
    handler = SklearnModelHandlerNumpy(model, max_batch_size=50).with_postprocess_fn(
        lambda result: float(result.inference)
    )
    return headrace.predict(handler, wines, on_failure="yield")


def main() -> None:
    """Trains, predicts, prints a few predictions."""
    wines = load_wine().data[::30, 1:]
    wines[2, 0] = np.nan  # a missing measurement
    with tempfile.TemporaryDirectory() as folder:
        for guess in guess_alcohol(train(Path(folder)), wines):
            if isinstance(guess, headrace.Failure):
                print(f"{guess.stage.value} failed: {guess.error!r:.60}...")
            else:
                print(f"{guess:.2f} % alcohol")


if __name__ == "__main__":
    main()
