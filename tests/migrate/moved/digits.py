"""Lines of labels and pixels through a keyed scikit-learn handler, as Beam's first example of RunInference does."""

import argparse

import apache_beam as beam
import numpy
from apache_beam.ml.inference.base import KeyedModelHandler
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.ml.inference.base import RunInference
from apache_beam.ml.inference.sklearn_inference import ModelFileType
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy


def parse(line: str) -> tuple[int, numpy.ndarray]:
    """The label and the pixels of a line."""
    label, *pixels = line.split(",")
    return int(label), numpy.array([int(pixel) for pixel in pixels])


class Format(beam.DoFn):
    """Label and prediction, as text."""

    def process(self, element: tuple[int, PredictionResult]):
        label, result = element
        yield f"{label},{result.inference}"


def build(root, folder):
    """What ``main`` writes, for a model in a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_path", required=True)
    known, _ = parser.parse_known_args([f"--model_path={folder}/numbers.pkl", "--runner=x"])
    handler = KeyedModelHandler(
        SklearnModelHandlerNumpy(model_uri=known.model_path, model_file_type=ModelFileType.PICKLE)
    )
    return (
        root
        | "Read" >> beam.Create(["1,2,3", "4,5,6", "7,8,9"])
        | "Preprocess" >> beam.Map(parse)
        | "RunInference" >> RunInference(handler)
        | "Format" >> beam.ParDo(Format())
    )
