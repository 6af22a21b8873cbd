"""However many elements a bundle has, and however large: the bytes in memory are bounded."""

from __future__ import annotations

import tracemalloc

import numpy
import pytest

from headrace import BatchingConfig, KeyedModelHandler, KeyModelMapping, ModelHandler
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.runtime.worker import Worker
from toys import Events

BOUND = 8_000_000


class Sum(ModelHandler):
    def load_model(self):
        self.batches = []
        return numpy.sum

    def run_inference(self, batch, model, inference_args=None):
        self.batches.append(len(batch))
        return [int(model(example)) for example in batch]

    def run_columns(self, columns, model, inference_args=None):
        return columns.sum(axis=1)


def peak(handler, elements, **options):
    """The peak of allocated bytes, and the number of outcomes."""
    worker = Worker(prepare(handler, InferenceRequest(batching=BatchingConfig(lookahead_bytes=BOUND, **options))))
    count = 0
    try:
        bundle = worker.bundle(Events())
        tracemalloc.start()
        for element in elements:
            count += sum(len(outcome.values) for outcome in bundle.add(element, None))
            del element
        count += sum(len(outcome.values) for outcome in bundle.finish())
        return tracemalloc.get_traced_memory()[1], count
    finally:
        tracemalloc.stop()
        worker.close()


def megabytes(count):
    return (numpy.zeros(1_000_000, numpy.uint8) for _ in range(count))


@pytest.mark.large
@pytest.mark.parametrize(
    "options",
    [
        {"target_batch_overhead": 1e-9},  # asks for as many as may be
        {"target_batch_overhead": 1e-9, "element_size_fn": lambda _: 1},
        {"length_fn": len},
    ],
    ids=["as-they-come", "weighed", "sorted"],
)
def test_memory_is_bounded_with_many_large_elements(options):
    most, count = peak(Sum(), megabytes(1000), **options)
    assert count == 1000
    assert most < 5 * BOUND  # one batch forms, one waits, one runs


@pytest.mark.large
def test_memory_is_bounded_with_a_few_elements_for_each_of_many_models():
    handler = KeyedModelHandler([KeyModelMapping([n], Sum()) for n in range(100)])
    most, count = peak(handler, ((n % 100, one) for n, one in enumerate(megabytes(500))), min_batch_size=50)
    assert count == 500
    assert most < 5 * BOUND  # one batch forms, one waits, one runs


def test_memory_is_bounded_with_large_columnar_elements():
    tables = (numpy.zeros((10, 100_000), numpy.uint8) for _ in range(500))
    most, _ = peak(Sum(), tables, columnar=True, target_batch_overhead=1e-9)
    assert most < 6 * BOUND  # one batch forms, one waits, one runs and is joined


def test_minimum_batch_size_is_kept_with_a_single_model():
    handler = Sum()
    worker = Worker(prepare(handler, InferenceRequest(batching=BatchingConfig(20, 20, lookahead_bytes=BOUND))))
    bundle = worker.bundle(Events())
    for element in megabytes(50):
        bundle.add(element, None)
    list(bundle.finish())
    worker.close()
    assert worker.plan.handler.batches == [20, 20, 10]
