"""Rows with named fields into a model on data frames: Headrace takes them as they are, Beam as frames of one row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pandas
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerPandas as BeamHandler
from goals import Goal, ratio_of_sides
from measure import BEAM, HEADRACE, Case

from headrace.beam import RunInference
from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas as Handler
from workloads import mixed_tables

TITLE = "20,000 beam.Rows of numbers and text through a scikit-learn pipeline on data frames"

ABOUT = """\
Beam's handler takes data frames of one row, which a step before it makes of the rows; Headrace's takes the rows."""

_NAME = "beam.Row, adaptive batches"

GOALS = [Goal("Rows into the frame handler: wall time, Headrace / Beam", ratio_of_sides(_NAME), at_most=0.1)]

_CHUNKS = 20


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """One; predictions are labels and must be equal exactly."""
    count = 1_000 if quick else 20_000
    model = str(mixed_tables.fitted(folder / "model.pkl"))
    yield Case(
        name=_NAME,
        rows=count,
        source=lambda: beam.Create(range(_CHUNKS)) | beam.FlatMap(_rows, count // _CHUNKS),
        sides={
            HEADRACE: lambda **more: RunInference(Handler(model), **more) | beam.Map(_without_row),
            BEAM: lambda: beam.Map(_frame) | BeamRunInference(BeamHandler(model)) | "Id" >> beam.Map(_without_row),
        },
    )


def _rows(chunk: int, count: int) -> Iterator[beam.Row]:
    table = mixed_tables.table(count, seed=chunk)
    table["id"] += chunk * count
    return (beam.Row(**row) for row in table.to_dict("records"))


def _frame(row: beam.Row) -> pandas.DataFrame:
    return pandas.DataFrame([row.as_dict()])


def _without_row(result: Any) -> PredictionResult:
    """With the row's number as the example: the sides' own differ in kind."""
    return PredictionResult(np.int64(_number(result.example)), int(result.inference))


def _number(example: Any) -> int:
    return int(example["id"].iloc[0]) if isinstance(example, pandas.DataFrame) else int(example.id)
