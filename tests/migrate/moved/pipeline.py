"""What public pipelines import and call: a handler that Beam does not know, and one of Beam's in an own transform."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pandas
from apache_beam.ml.inference import RunInference
from apache_beam.ml.inference.base import ExampleT
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import ModelT
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.ml.inference.base import PredictionT

if TYPE_CHECKING:
    from apache_beam.ml.inference.base import ModelHandler as AnyHandler


class ScalingHandler(ModelHandler[ExampleT, PredictionT, ModelT], ABC):
    """The base of a framework's handlers, generic in its types."""

    def __init__(self, model_uri: str, **kwargs):
        super().__init__()
        self._model_uri = model_uri
        self._env_vars = kwargs.get("env_vars", {})

    def load_model(self) -> Callable[[float], float]:
        with open(self._model_uri) as file:
            factor = float(file.read())
        return lambda x: x * factor


class FloatHandler(ScalingHandler[float, PredictionResult, Callable[[float], float]]):
    """Overrides what can be overridden."""

    def run_inference(
        self, batch: Sequence[float], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        return [PredictionResult(x, model(x) + (inference_args or {}).get("plus", 0)) for x in batch]

    def get_num_bytes(self, batch: Sequence[float]) -> int:
        return 8 * len(batch)

    def get_metrics_namespace(self) -> str:
        return "ScalingML"

    def batch_elements_kwargs(self) -> dict[str, Any]:
        return {"min_batch_size": 2, "max_batch_size": 2}

    def validate_inference_args(self, inference_args: dict[str, Any] | None):
        if set(inference_args or {}) - {"plus"}:
            raise ValueError("only plus")


class Score(beam.PTransform):
    """Dicts to predictions."""

    def __init__(self, model: str):
        super().__init__()
        self._model = model

    def handler(self) -> AnyHandler:
        from apache_beam.ml.inference.sklearn_inference import ModelFileType, SklearnModelHandlerPandas

        return SklearnModelHandlerPandas(self._model, ModelFileType.JOBLIB, min_batch_size=1, max_batch_size=10)

    def expand(self, pcoll):
        frames = pcoll | "Frames" >> beam.Map(lambda row: pandas.DataFrame([row]))
        return frames | "RunInference" >> RunInference(self.handler())


def flat(result: PredictionResult) -> str:
    """The prediction for a number or for a frame of one row, and its input."""
    example = result.example if isinstance(result.example, float) else result.example.iloc[0].to_dict()
    return f"{example} {float(result.inference):.1f}"


def build(root, folder):
    """Scores of rows, and scaled numbers."""
    scores = root | "Rows" >> beam.Create([{"x": 1, "y": 2}, {"x": 3, "y": 4}]) | Score(f"{folder}/frames.joblib")
    handler = FloatHandler(f"{folder}/factor.txt", env_vars={"HEADRACE_MOVED": "1"})
    numbers = root | "Numbers" >> beam.Create([1.0, 2.0, 3.0])
    scaled = numbers | RunInference(model_handler=handler, inference_args={"plus": 0.5})
    return (scores, scaled) | beam.Flatten() | beam.Map(flat)
