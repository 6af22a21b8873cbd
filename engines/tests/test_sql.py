# Beam takes annotations for a schema, but not annotations that are strings: no import of those from __future__.
"""Beam SQL over predictions: it needs a schema, which Headrace infers."""

from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.testing.util import assert_that, equal_to

import headrace
from headrace.beam import RunInference


class Scored(NamedTuple):
    """What the second handler declares that it predicts."""

    kind: str
    score: float


coders.registry.register_coder(Scored, coders.RowCoder)  # as Beam SQL wants it of a named tuple


class Lengths(headrace.ModelHandler[str, float, Any]):
    """Predicts the lengths of texts."""

    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        return [float(model(text)) for text in batch]


class Scores(headrace.ModelHandler[str, Scored, Any]):
    """Predicts rows, and declares them."""

    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        return [Scored("even" if model(text) % 2 == 0 else "odd", float(model(text))) for text in batch]


def as_row(length):
    return beam.Row(kind="even" if length % 2 == 0 else "odd", score=float(length))


@pytest.mark.timeout(600)
def test_predictions_are_tables_of_beam_sql(beam_sql):
    query = "SELECT `kind`, SUM(`score`) AS `total` FROM PCOLLECTION GROUP BY `kind`"
    with beam.Pipeline("FnApiRunner") as pipeline:  # a single one: the service's worker takes no second
        texts = pipeline | beam.Create(["a", "bb", "ccc", "dddd"])
        for name, handler in (("Postprocessed", Lengths().with_postprocess_fn(as_row)), ("Declared", Scores())):
            totals = texts | name >> RunInference(handler) | f"{name} SQL" >> beam_sql.query(query)
            pairs = totals | f"{name} pairs" >> beam.Map(tuple)
            assert_that(pairs, equal_to([("odd", 4.0), ("even", 6.0)]), f"{name} totals")
