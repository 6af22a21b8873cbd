"""The type of predictions where Beam's own module is loaded."""

from __future__ import annotations

from typing import Any

from apache_beam.ml.inference import base

from headrace.core.result import PredictionResult


class EitherResult(PredictionResult, base.PredictionResult):
    """Stands for Headrace's and for Beam's PredictionResult in type hints; has no instances.

    Handlers, Headrace's or Beam's, declare one of the two; the functions that take what they predict may be annotated
    with the other, since the two are equal and have the same fields.
    """

    __slots__ = ()

    example: Any
    inference: Any
    model_id: str | None
