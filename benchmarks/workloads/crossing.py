"""What it costs that elements wait for those of other bundles, where the model takes next to nothing."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy as BeamHandler
from goals import Goal, ratio_of_sides
from measure import BEAM, HEADRACE, Case, Transform

from headrace.beam import RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy as Handler
from workloads.tiny import make_rows, trained

TITLE = "Batches of 1,000 across bundles: rows of 20 float64 through a logistic regression"

_WAIT = "unbounded, what the wait adds"

GOALS = [
    Goal("Unbounded, batches across bundles: wall time with / without waiting", ratio_of_sides(_WAIT), at_most=1.5)
]

_CHUNKS = 320
_FIXED: Mapping[str, Any] = {"min_batch_size": 1000, "max_batch_size": 1000}
_WAITING: Mapping[str, Any] = {**_FIXED, "max_batch_duration_secs": 60}
_WITHIN = "Headrace within"


class _Rows(beam.PTransform):
    """Rows in one bundle; unbounded, if so declared."""

    def __init__(self, rows: int, *, bounded: bool) -> None:
        super().__init__()
        self._rows = rows
        self._bounded = bounded

    def expand(self, begin: Any) -> beam.PCollection:
        """Chunks become rows behind a shuffle."""
        rows = begin | beam.Create(range(_CHUNKS)) | beam.Reshuffle() | beam.FlatMap(make_rows, self._rows // _CHUNKS)
        if not self._bounded:
            rows.is_bounded = False
        return rows


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Waiting against not waiting, and against Beam's way; predictions must be equal exactly."""
    rows = 3_200 if quick else 80_000
    model = str(folder / "logistic_regression.pickle")
    Path(model).write_bytes(pickle.dumps(trained()))

    def headrace(**more: Any) -> beam.PTransform:
        return RunInference(Handler(model, **_WAITING), **more)

    def within(**more: Any) -> beam.PTransform:
        return RunInference(Handler(model, **_FIXED), **more)

    def incumbent() -> beam.PTransform:
        return BeamRunInference(BeamHandler(model, **_WAITING))

    comparisons: list[tuple[str, bool, dict[str, Transform]]] = [
        ("one bundle, beside Beam", True, {HEADRACE: headrace, BEAM: incumbent}),
        ("unbounded", False, {HEADRACE: headrace, BEAM: incumbent}),
        (_WAIT, False, {HEADRACE: headrace, _WITHIN: within}),
    ]
    for name, bounded, sides in comparisons:
        yield Case(
            name=name,
            rows=rows,
            source=lambda bounded=bounded: _Rows(rows, bounded=bounded),
            sides=sides,
        )
