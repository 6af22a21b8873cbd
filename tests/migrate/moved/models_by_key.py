"""A model for each language or tenant: ``KeyModelMapping``, and a handler that takes keyed and unkeyed elements."""

import apache_beam as beam
import numpy
from apache_beam.ml.inference import base, sklearn_inference as sk


def with_model(name, folder):
    """A handler for a model of the folder."""
    return sk.SklearnModelHandlerNumpy(f"{folder}/{name}.pkl", sk.ModelFileType.PICKLE)


def build(root, folder):
    """Predictions of two models by key, and of one with and without keys."""
    per_key = base.KeyedModelHandler(
        [
            base.KeyModelMapping(["plus", "and"], with_model("numbers", folder)),
            base.KeyModelMapping(["twice"], with_model("doubles", folder)),
        ],
        max_models_per_worker_hint=1,
    )
    rows = [("plus", numpy.array([1, 2])), ("twice", numpy.array([1, 2])), ("and", numpy.array([5, 5]))]
    by_key = root | "Keyed" >> beam.Create(rows) | "PerKey" >> base.RunInference(per_key)
    either = base.MaybeKeyedModelHandler(with_model("doubles", folder))
    plain = root | "Plain" >> beam.Create([numpy.array([9, 1])]) | "Either" >> base.RunInference(either)
    return (
        by_key | "Pairs" >> beam.MapTuple(lambda key, result: (key, int(result.inference))),
        plain | "Alone" >> beam.Map(lambda result: ("", int(result.inference))),
    ) | beam.Flatten()
