"""Rows through logistic regression: one by one, in columnar elements, and in a loop by hand."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy as BeamHandler
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from goals import INTERVALS, Goal, interval, ratio
from sklearn.linear_model import LogisticRegression

from headrace import BatchingConfig
from headrace.beam import RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

TITLE = "Rows of 20 columns through logistic regression: in columnar elements, one by one, and by hand"

ABOUT = f"""\
2,000 arrays of 10,000 rows of 20 float64, of which 100 differ, made beforehand, through `LogisticRegression.predict`.
The loop by hand calls the model for each array. The others are whole pipelines on the FnApiRunner, from submission to
the end; in the last two an element is one row, of ten such arrays taken apart. *Without start*: from when the first
array is read to when the last prediction has been counted. All gave equal predictions. The ways take turns, forwards
and backwards.

{INTERVALS}"""

_BY_HAND, _COLUMNAR = "by hand", "Headrace, columnar"

GOALS = [
    Goal(f"Columnar elements: rows/s {where} / of the loop by hand", ratio(_COLUMNAR, _BY_HAND, field), at_least=0.5)
    for where, field in (("of a whole pipeline", "rate"), ("without the pipeline's start", "steady_rate"))
]

_ROWS_AT_ONCE = 10_000
_TIMES = 20
"""How often the arrays go through, so that the pipeline's start does not decide."""
_arrays: list[np.ndarray] = []
_sums: list[int] = []
_moments: list[float] = []
"""When the first array was read, and when each prediction was counted."""


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    rng = np.random.default_rng(7)
    _arrays[:] = [rng.normal(size=(_ROWS_AT_ONCE, 20)) for _ in range(2 if quick else 100)]
    path = str(folder / "model.pkl")
    model = LogisticRegression().fit(_arrays[0], _arrays[0].sum(axis=1) > 0)
    Path(path).write_bytes(pickle.dumps(model))
    by_row = max(1, len(_arrays) // 10)
    ways: dict[str, tuple[int, Callable[[int], int]]] = {
        _BY_HAND: (_TIMES * len(_arrays), partial(_by_hand, model)),
        _COLUMNAR: (_TIMES * len(_arrays), partial(_pipeline, lambda: _columnar(path), _sum_of_column, rows=False)),
        "Headrace, row by row": (
            by_row,
            partial(_pipeline, lambda: RunInference(SklearnModelHandlerNumpy(path)), _sum_of_row, rows=True),
        ),
        "Beam, row by row": (
            by_row,
            partial(_pipeline, lambda: BeamRunInference(BeamHandler(path)), _sum_of_row, rows=True),
        ),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(repeats):
        for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            runs[name].append(_run(model, *ways[name]))
    for name, of_name in runs.items():
        yield {
            "way": name,
            "rounds": str(repeats),
            "million rows/s": _millions(of_name, "rate"),
            "million rows/s without start": _millions(of_name, "steady_rate"),
            "runs": of_name,
        }


def _columnar(path: str) -> beam.PTransform:
    return RunInference(SklearnModelHandlerNumpy(path), batching=BatchingConfig(columnar=True))


def _run(model: Any, count: int, way: Callable[[int], int]) -> dict[str, float]:
    """Rows a second, from submission and from the first array."""
    started = time.perf_counter()
    positive = way(count)
    seconds = time.perf_counter() - started
    steady = _moments[-1] - _moments[0]
    times, rest = divmod(count, len(_arrays))
    positives = [int(model.predict(array).sum()) for array in _arrays]
    expected = times * sum(positives) + sum(positives[:rest])
    assert positive == expected, f"{positive} predictions are positive, and {expected} should be"
    rows = count * _ROWS_AT_ONCE
    return {"rate": rows / seconds, "steady_rate": rows / steady}


def _by_hand(model: Any, count: int) -> int:
    for array in _some_arrays(count):
        _add(int(model.predict(array).sum()))
    return sum(_sums)


def _pipeline(transform: Callable[[], beam.PTransform], add: Callable[[Any], None], count: int, *, rows: bool) -> int:
    with beam.Pipeline(FnApiRunner()) as pipeline:
        elements = pipeline | beam.Create([count]) | beam.FlatMap(_some_arrays)
        elements = elements | beam.FlatMap(_rows_of) if rows else elements
        _ = elements | transform() | beam.Map(add)
    return sum(_sums)


def _some_arrays(count: int) -> Iterator[np.ndarray]:
    _sums.clear()
    _moments[:] = [time.perf_counter()]
    return islice(cycle(_arrays), count)


def _rows_of(array: np.ndarray) -> Iterator[np.ndarray]:
    return iter(array)


def _sum_of_column(result: Any) -> None:
    _add(int(result.inference.sum()))


def _sum_of_row(result: Any) -> None:
    _add(int(result.inference))


def _add(positive: int) -> None:
    _sums.append(positive)
    _moments.append(time.perf_counter())


def _millions(runs: Sequence[dict[str, float]], field: str) -> str:
    return str(interval([run[field] / 1e6 for run in runs]))
