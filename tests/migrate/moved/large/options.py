"""A handler of one's own with everything that a transform takes: environment, ready batches, hints, arguments."""

import os

import apache_beam as beam
import apache_beam.ml.inference.base
from apache_beam.ml.inference.base import ModelHandler, RunInference


class Configured(ModelHandler):
    """Reads the environment when it loads."""

    def __init__(self, env_vars=None):
        self._env_vars = env_vars or {}

    def load_model(self):
        found = os.environ["HEADRACE_MOVED_OPTION"]
        return lambda times: found * times

    def run_inference(self, batch, model, inference_args=None):
        times = (inference_args or {}).get("times", 1)
        return [(model(times), x) for x in batch]

    def validate_inference_args(self, inference_args):
        """All are welcome."""

    def get_resource_hints(self):
        return {"min_ram": "1MB"}

    def get_metrics_namespace(self):
        return "Configured"


def build(root, folder):
    """The environment's value with numbers."""
    assert issubclass(Configured, apache_beam.ml.inference.base.ModelHandler)
    handler = Configured(env_vars={"HEADRACE_MOVED_OPTION": "x"}).with_no_batching()
    batches = root | beam.Create([[1, 2], [3]])
    return batches | RunInference(handler, inference_args={"times": 2}, model_identifier="it", metrics_namespace="n")
