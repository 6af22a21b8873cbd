"""Bad records leave the pipeline by a side exit, with functions before and after the model."""

import json

import apache_beam as beam
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import RunInference


class Inverse(ModelHandler[float, float, object]):
    """Fails for zero."""

    def load_model(self):
        return lambda x: 1 / x

    def run_inference(self, batch, model, inference_args=None):
        return [model(x) for x in batch]

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}


def build(root, folder):
    """Good values, and what failed where."""
    handler = (
        Inverse()
        .with_preprocess_fn(lambda record: record["x"])
        .with_preprocess_fn(json.loads)
        .with_postprocess_fn(lambda y: f"{100 // y:.0f}")
    )
    main, other = (
        root
        | beam.Create(['{"x": 2}', "{", '{"x": 0}', '{"y": 1}'])
        | RunInference(handler).with_exception_handling(exc_class=Exception, threshold=0.9)
    )
    failed = [*other.failed_preprocessing, other.failed_inferences, *other.failed_postprocessing]
    named = [
        pcoll | f"Failed-{index}" >> beam.Map(lambda letter, at: f"{at}: {letter[0]} {letter[1][0].__name__}", index)
        for index, pcoll in enumerate(failed)
    ]
    return (main, *named) | beam.Flatten()
