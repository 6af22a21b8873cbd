"""Events in windows, a prediction for each, counted for each window."""

import apache_beam as beam
from apache_beam.ml.inference import base as inference_base
from apache_beam.transforms import window


class Parity(inference_base.ModelHandler[int, str, object]):
    """Even or odd."""

    def load_model(self):
        return {0: "even", 1: "odd"}.__getitem__

    def run_inference(self, batch, model, inference_args=None):
        yield from (model(x % 2) for x in batch)


def with_window(pair, where=beam.DoFn.WindowParam):
    """The count with the beginning of its window."""
    return float(where.start), *pair


def build(root, folder):
    """How many of each kind in each window."""
    return (
        root
        | beam.Create([(1, 1), (2, 3), (4, 11), (6, 12), (7, 13)])
        | beam.MapTuple(window.TimestampedValue)
        | beam.WindowInto(window.FixedWindows(10))
        | inference_base.RunInference(Parity())
        | beam.combiners.Count.PerElement()
        | beam.Map(with_window)
    )
