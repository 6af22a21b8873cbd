"""A transform of one's own around RunInference, typed for type checkers only, made from a configuration."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import apache_beam as beam
import pandas

if TYPE_CHECKING:
    from apache_beam.ml.inference.base import ModelHandler, PredictionResult


@dataclasses.dataclass
class Config:
    """What a deployment sets."""

    model: str
    batch: int = 10

    def handler(self) -> ModelHandler:
        """The handler that it means."""
        from apache_beam.ml.inference.sklearn_inference import ModelFileType, SklearnModelHandlerPandas

        return SklearnModelHandlerPandas(self.model, ModelFileType.JOBLIB, min_batch_size=1, max_batch_size=self.batch)


def flat(result: PredictionResult) -> str:
    """The prediction of a one-row frame, and its input."""
    return f"{result.example.iloc[0].to_dict()} {float(result.inference):.1f}"


class Score(beam.PTransform):
    """Dicts to text."""

    def __init__(self, config: Config):
        super().__init__()
        self._config = config

    def expand(self, pcoll):
        from apache_beam.ml.inference import RunInference

        frames = pcoll | "Frames" >> beam.Map(lambda row: pandas.DataFrame([row]))
        return frames | "RunInference" >> RunInference(self._config.handler()) | "Flat" >> beam.Map(flat)


def build(root, folder):
    """Scores of rows."""
    return root | beam.Create([{"x": 1, "y": 2}, {"x": 3, "y": 4}]) | Score(Config(f"{folder}/frames.joblib"))
