"""MLTransform of Beam's with embeddings that Headrace's transform computes."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.ml.transforms import base
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

import headrace
from headrace.beam import RunInference


class Lengths(headrace.ModelHandler):
    """Embeds a text as its length; refuses the text "bad"."""

    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        if "bad" in batch:
            raise ValueError("a bad text")
        return [[float(model(text))] for text in batch]


class LengthEmbeddings(base.EmbeddingsManager):
    def __init__(self, columns, **options):
        super().__init__(columns=columns)
        self.options = options

    def get_model_handler(self):
        return Lengths(**self.options)

    def get_ptransform_for_processing(self, **kwargs):
        return RunInference(base._TextEmbeddingHandler(self))


ROWS = [{"text": "one", "id": 1}, {"text": "three", "id": 2}]
EMBEDDED = [{"text": [3.0], "id": 1}, {"text": [5.0], "id": 2}]


def test_embeddings_are_computed_and_their_artefacts_are_read_again(tmp_path):
    folder = str(tmp_path / "artefacts")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        writing = base.MLTransform(write_artifact_location=folder).with_transform(LengthEmbeddings(["text"]))
        assert_that(pipeline | beam.Create(ROWS) | writing, equal_to(EMBEDDED))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        reading = base.MLTransform(read_artifact_location=folder)
        assert_that(pipeline | beam.Create(ROWS) | reading, equal_to(EMBEDDED))


@pytest.mark.parametrize("reads", [False, True], ids=["written", "read"])
def test_bad_rows_become_dead_letters_of_the_transform(tmp_path, reads):
    folder = str(tmp_path / "artefacts")
    transform = base.MLTransform(write_artifact_location=folder).with_transform(LengthEmbeddings(["text"]))
    if reads:
        _ = beam.Pipeline() | beam.Create(ROWS) | transform
        transform = base.MLTransform(read_artifact_location=folder)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([*ROWS, {"text": "bad", "id": 3}])
        embedded, bad = rows | transform.with_exception_handling()
        assert_that(embedded, equal_to(EMBEDDED), "neighbours")
        described = bad | beam.Map(lambda row: (row.element, row.msg))
        assert_that(described, equal_to([([{"text": "bad", "id": 3}], "ValueError('a bad text')")]), "bad")
