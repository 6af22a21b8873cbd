# Beam takes annotations for type hints, but not annotations that are strings: no import of those from __future__.
"""Steps that take batches, right after RunInference."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import apache_beam as beam
import pytest

from headrace import ModelHandler
from headrace.beam import RunInference


class Length(NamedTuple):
    length: int


class Lengths(ModelHandler[str, int, Any]):
    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        return map(model, batch)


def as_row(length: int) -> Length:
    return Length(length)


class TakesRows(beam.DoFn):
    """Takes batches, as ``to_dataframe`` does."""

    @beam.DoFn.yields_elements
    def process_batch(self, batch: list[Length]) -> Iterable[int]:
        return [row.length for row in batch]


class TakesNumbers(beam.DoFn):
    @beam.DoFn.yields_elements
    def process_batch(self, batch: list[int]) -> Iterable[int]:
        return batch


@pytest.fixture(params=[False, True], ids=["failing", "handling"])
def infer(request, run):
    """Gives the values of a handler for three texts."""

    def infer(handler):
        texts, transform = run.create(["a", "bb", "ccc"]), RunInference(handler)
        return (texts | transform.with_exception_handling())[0] if request.param else texts | transform

    return infer


def test_batches_of_rows_are_whole(run, infer):
    rows = infer(Lengths().with_postprocess_fn(as_row))
    assert sorted(run.values(out=rows | beam.ParDo(TakesRows()))) == [1, 2, 3]


def test_batches_that_beam_would_lose_are_refused(run, infer):
    with pytest.raises(RuntimeError) as caught:
        run.values(out=infer(Lengths()) | "Next" >> beam.ParDo(TakesNumbers()))
    assert str(caught.value.__cause__).startswith("Next takes batches right after RunInference")


def test_batches_after_another_step_are_whole(run, infer):
    lengths = infer(Lengths()) | beam.Map(lambda length: length)
    assert sorted(run.values(out=lengths | beam.ParDo(TakesNumbers()))) == [1, 2, 3]
