"""Keras models are called as graphs, as long as they can be."""

from __future__ import annotations

import numpy
import pytest
import tensorflow

from headrace.handlers.tensorflow_inference import default_numpy_inference_fn

pytestmark = pytest.mark.large


class NotesCalls(tensorflow.keras.Model):
    """Adds 1, and notes whether it was called as a graph; if it looks at numbers, no graph can do it."""

    def __init__(self, calls, *, looks=False):
        super().__init__()
        self.note, self.looks = calls.append, looks

    def call(self, inputs):
        self.note("eager" if tensorflow.executing_eagerly() else "graph")
        return inputs + (float(inputs.numpy()[0, 0]) * 0 + 1 if self.looks else 1)


@pytest.mark.parametrize(
    ("looks", "run_eagerly", "expected"),
    [(False, False, ["graph"]), (False, True, ["eager"] * 3), (True, False, ["graph", "eager", "eager", "eager"])],
)
def test_keras_models_are_called_as_graphs_if_they_can_be(looks, run_eagerly, expected):
    calls = []
    model = NotesCalls(calls, looks=looks)
    model.run_eagerly = run_eagerly
    for _ in range(3):
        results = default_numpy_inference_fn(model, [numpy.zeros(2, numpy.float32)] * 4)
        assert [result.inference.numpy().tolist() for result in results] == [[1, 1]] * 4
    assert calls == expected
