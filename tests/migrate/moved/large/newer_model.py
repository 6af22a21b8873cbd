"""A side input that announces a newer model."""

from collections.abc import Callable

import apache_beam as beam
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import ModelMetadata
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.ml.inference.base import RunInference
from apache_beam.ml.inference.utils import WatchFilePattern


class Constant(ModelHandler[int, PredictionResult, Callable[[], str]]):
    """Answers with the path of its model."""

    def __init__(self, path):
        self._path = path

    def load_model(self):
        path = self._path
        return lambda: path

    def update_model_path(self, model_path=None):
        self._path = model_path or self._path

    def run_inference(self, batch, model, inference_args=None):
        return [PredictionResult(x, model(), model_id=model()) for x in batch]


def watched(pipeline, pattern):
    """What a streaming pipeline would use in place of the metadata."""
    return pipeline | WatchFilePattern(file_pattern=pattern, interval=60)


def build(root, folder):
    """Answers of the newer model."""
    updates = root | "Updates" >> beam.Create([ModelMetadata(model_id="v2", model_name="second")])
    return root | beam.Create([1, 2]) | RunInference(Constant("v1"), model_metadata_pcoll=updates)
