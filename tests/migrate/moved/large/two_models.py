"""Two models side by side for a comparison, and one after the other, with numbers from their metrics' namespaces."""

import apache_beam as beam
import numpy
from apache_beam.ml import inference


def handler(name, folder):
    """A handler of the folder's model."""
    sklearn = inference.sklearn_inference
    return sklearn.SklearnModelHandlerNumpy(
        model_uri=f"{folder}/{name}.pkl", model_file_type=sklearn.ModelFileType.PICKLE, max_batch_size=8
    )


def better(element):
    """The largest answer of both branches."""
    key, answers = element
    return key, max(int(result.inference) for result in (*answers["a"], *answers["b"]))


def build(root, folder):
    """The larger of two answers, and the answer to an answer."""
    rows = root | beam.Create([("x", numpy.array([1, 2])), ("y", numpy.array([30, 4]))])
    keyed = [inference.base.KeyedModelHandler(handler(name, folder)) for name in ("numbers", "doubles")]
    a = rows | "A" >> inference.RunInference(keyed[0], metrics_namespace="a")
    b = rows | "B" >> inference.RunInference(keyed[1], metrics_namespace="b")
    again = a | beam.MapTuple(lambda key, result: (key, numpy.array([result.inference, 1])))
    chained = again | "Chained" >> inference.RunInference(keyed[1])
    return (
        {"a": a, "b": b} | beam.CoGroupByKey() | beam.Map(better),
        chained | "Pairs" >> beam.MapTuple(lambda key, result: (f"{key} again", int(result.inference))),
    ) | beam.Flatten()
