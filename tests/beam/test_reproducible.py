"""With a fixed batch size two runs give the same bytes, though the last bits depend on the batch."""

from __future__ import annotations

import numpy
import pytest

from headrace import ModelHandler
from headrace.beam import RunInference


class Bits(ModelHandler):
    """Predicts sums whose last bits depend on the size of the batch."""

    def load_model(self):
        return numpy.random.default_rng(1).normal(size=(37, 5)).astype("f4")

    def run_inference(self, batch, model, inference_args=None):
        logits = numpy.stack(batch) @ model
        return list(logits + numpy.float32(1e-7) * len(batch))


@pytest.mark.large
@pytest.mark.parametrize("options", [{}, {"batch_length_fn": numpy.count_nonzero}], ids=["as-they-come", "sorted"])
def test_predictions_of_two_runs_are_byte_equal(make_run, options):
    rows = numpy.random.default_rng(0).normal(size=(1000, 37)).astype("f4")
    rows[numpy.random.default_rng(2).random(rows.shape) < 0.3] = 0

    def answers(size):
        run = make_run()
        handler = Bits(min_batch_size=size, max_batch_size=size, **options)
        return [answer.tobytes() for answer in run.values(answers=run.create(rows) | RunInference(handler))]

    first = answers(48)
    assert len(first) == 1000
    assert answers(48) == first
    assert answers(47) != first
