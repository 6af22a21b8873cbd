"""A handler for a framework that Beam does not know, generic in its types, with everything that can be overridden."""

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference import RunInference
from apache_beam.ml.inference.base import ExampleT
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import ModelT
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.ml.inference.base import PredictionT

InferenceFn = Callable[[Sequence[float], Any, dict[str, Any] | None], Iterable[PredictionResult]]


def default_inference_fn(batch, model, inference_args=None):
    """One prediction for each example."""
    plus = (inference_args or {}).get("plus", 0)
    return [PredictionResult(x, model(x) + plus) for x in batch]


class ScalingHandler(ModelHandler[ExampleT, PredictionT, ModelT], ABC):
    """The base of the framework's handlers."""

    def __init__(self, model_uri: str, inference_fn: InferenceFn = default_inference_fn, **kwargs):
        super().__init__()
        self._model_uri = model_uri
        self._inference_fn = inference_fn
        self._env_vars = kwargs.get("env_vars", {})

    def load_model(self) -> Callable[[float], float]:
        with open(self._model_uri) as file:
            factor = float(file.read())
        return lambda x: x * factor

    def get_metrics_namespace(self) -> str:
        return "ScalingML"


class FloatHandler(ScalingHandler[float, PredictionResult, Callable[[float], float]]):
    """For numbers."""

    def run_inference(
        self, batch: Sequence[float], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        return self._inference_fn(batch, model, inference_args)

    def get_num_bytes(self, batch: Sequence[float]) -> int:
        return 8 * len(batch)

    def batch_elements_kwargs(self) -> dict[str, Any]:
        return {"min_batch_size": 2, "max_batch_size": 2}

    def validate_inference_args(self, inference_args: dict[str, Any] | None):
        if set(inference_args or {}) - {"plus"}:
            raise ValueError("only plus")


def build(root, folder):
    """Scaled numbers."""
    handler = FloatHandler(f"{folder}/factor.txt", env_vars={"HEADRACE_MOVED": "1"})
    return root | beam.Create([1.0, 2.0, 3.0]) | RunInference(model_handler=handler, inference_args={"plus": 0.5})
