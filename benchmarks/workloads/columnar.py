"""Rows through logistic regression: one by one, in columnar elements, and in a loop by hand."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy as BeamHandler
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from goals import Goal, find, ratios
from sklearn.linear_model import LogisticRegression

from headrace import BatchingConfig
from headrace.beam import RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

TITLE = "Rows of 20 columns through logistic regression: in columnar elements, one by one, and by hand"

ABOUT = """\
Arrays of 10,000 rows of 20 float64, made beforehand, through `LogisticRegression.predict`. The loop by hand calls the
model for each array. The others are whole pipelines on the FnApiRunner, from submission to the end; in the last two an
element is one row, of an array taken apart. All gave equal predictions. The ways take turns, forwards and backwards;
intervals are from the least to the greatest of the rounds."""

_BY_HAND, _COLUMNAR = "by hand", "Headrace, columnar"

GOALS = [
    Goal(
        "Columnar elements: rows/s of a pipeline with its start / of the loop by hand",
        lambda results: ratios(find(results, _COLUMNAR), find(results, _BY_HAND)),
        at_least=0.5,
    )
]

_ROWS_AT_ONCE = 10_000
_arrays: list[np.ndarray] = []
_sums: list[int] = []


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    rng = np.random.default_rng(7)
    _arrays[:] = [rng.normal(size=(_ROWS_AT_ONCE, 20)) for _ in range(2 if quick else 100)]
    path = str(folder / "model.pkl")
    model = LogisticRegression().fit(_arrays[0], _arrays[0].sum(axis=1) > 0)
    Path(path).write_bytes(pickle.dumps(model))
    by_row = max(1, len(_arrays) // 10)
    ways: dict[str, tuple[int, Callable[[int], int]]] = {
        _BY_HAND: (len(_arrays), partial(_by_hand, model)),
        _COLUMNAR: (len(_arrays), partial(_pipeline, lambda: _columnar(path), _sum_of_column, rows=False)),
        "Headrace, row by row": (
            by_row,
            partial(_pipeline, lambda: RunInference(SklearnModelHandlerNumpy(path)), _sum_of_row, rows=True),
        ),
        "Beam, row by row": (
            by_row,
            partial(_pipeline, lambda: BeamRunInference(BeamHandler(path)), _sum_of_row, rows=True),
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats):
        for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            rates[name].append(_rate(model, *ways[name]))
    for name, of_name in rates.items():
        ratios = [rate / other for rate, other in zip(of_name, rates[_BY_HAND], strict=True)]
        yield {
            "way": name,
            "rounds": repeats,
            "million rows/s": _interval(of_name, 1e-6),
            "of the loop by hand": _interval(ratios, 1),
            "runs": of_name,
        }


def _columnar(path: str) -> beam.PTransform:
    return RunInference(SklearnModelHandlerNumpy(path), batching=BatchingConfig(columnar=True))


def _rate(model: Any, count: int, way: Callable[[int], int]) -> float:
    started = time.perf_counter()
    positive = way(count)
    seconds = time.perf_counter() - started
    expected = sum(int(model.predict(array).sum()) for array in _arrays[:count])
    assert positive == expected, f"{positive} predictions are positive, and {expected} should be"
    return count * _ROWS_AT_ONCE / seconds


def _by_hand(model: Any, count: int) -> int:
    return sum(int(model.predict(array).sum()) for array in _arrays[:count])


def _pipeline(transform: Callable[[], beam.PTransform], add: Callable[[Any], None], count: int, *, rows: bool) -> int:
    _sums.clear()
    with beam.Pipeline(FnApiRunner()) as pipeline:
        elements = pipeline | beam.Create([count]) | beam.FlatMap(_some_arrays)
        elements = elements | beam.FlatMap(_rows_of) if rows else elements
        _ = elements | transform() | beam.Map(add)
    return sum(_sums)


def _some_arrays(count: int) -> Iterator[np.ndarray]:
    return iter(_arrays[:count])


def _rows_of(array: np.ndarray) -> Iterator[np.ndarray]:
    return iter(array)


def _sum_of_column(result: Any) -> None:
    _sums.append(int(result.inference.sum()))


def _sum_of_row(result: Any) -> None:
    _sums.append(int(result.inference))


def _interval(values: Sequence[float], unit: float) -> str:
    middle, least, most = (value * unit for value in (statistics.median(values), min(values), max(values)))
    return f"{middle:.3f} ({least:.3f} to {most:.3f})"
