"""Nothing is imported by name: chains of attributes from the package that the file calls ``beam``."""

import os

import apache_beam as beam
import apache_beam.ml.inference.sklearn_inference
import numpy as np


def predict(numbers, model):
    """The predictions for a PCollection of rows."""
    handler = apache_beam.ml.inference.sklearn_inference.SklearnModelHandlerNumpy(
        model, apache_beam.ml.inference.sklearn_inference.ModelFileType.PICKLE, min_batch_size=1
    )
    keyed = beam.ml.inference.base.KeyedModelHandler(handler)
    return numbers | beam.ml.inference.base.RunInference(keyed)


def build(root, folder):
    """Keys with predictions."""
    rows = root | beam.Create([("a", np.array([1, 2])), ("b", np.array([3, 4]))])
    predictions = predict(rows, os.path.join(folder, "numbers.pkl"))
    return predictions | beam.MapTuple(lambda key, result: (key, int(result.inference), str(result.example)))
