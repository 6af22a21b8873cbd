"""With or without an engine, the same elements give the same results and the same dead letters."""

from __future__ import annotations

from collections import Counter

import apache_beam as beam
import apache_beam.ml.inference.base as beams_base
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import SKIP, Failure, KeyedModelHandler, KeyModelMapping, ModelHandler, Stage, predict
from headrace.beam import RunInference
from headrace.metrics.totals import Totals
from headrace.runtime.observers import subscribed
from toys import fixed

COLLECTED: list = []


class Ours(ModelHandler):
    def load_model(self):
        return 7

    def run_inference(self, batch, model, inference_args=None):
        if any(example % 5 == 4 for example in batch):
            raise ValueError("four")
        return [SKIP if example % 11 == 5 else example * model for example in batch]


class Theirs(beams_base.ModelHandler):
    load_model = Ours.load_model
    run_inference = Ours.run_inference


def even(number):
    if number % 7 == 6:
        raise KeyError("six")
    return SKIP if number % 13 == 12 else number


def with_key(number):
    return number % 3, number


HANDLERS = {
    "plain": Ours(),
    "beam": Theirs().with_preprocess_fn(even),
    "processed": Ours().with_preprocess_fn(even).with_postprocess_fn(even).with_postprocess_fn(str),
    "keyed": KeyedModelHandler(Ours()).with_preprocess_fn(with_key),
    "by key": KeyedModelHandler(
        [KeyModelMapping([0], Ours()), KeyModelMapping([1], Theirs())], max_models_per_worker_hint=1
    ).with_preprocess_fn(with_key),
    "batches": Ours().with_preprocess_fn(lambda number: range(number % 4)).with_no_batching(),
}


def as_pair(result):
    """A result as a hashable pair: (stage, what it is about)."""
    if isinstance(result, Failure):
        return f"{result.stage.value}_{result.index}", repr(result.record[0]), repr(result.error)
    return "prediction", repr(result), ""


def through_beam(handler, elements, batching):
    COLLECTED.clear()
    pipeline = beam.Pipeline(runner=FnApiRunner())
    good, dead = pipeline | beam.Create(elements) | RunInference(handler, batching=batching).with_exception_handling()
    outputs = {"prediction": good, f"{Stage.INFERENCE.value}_0": dead.failed_inferences}
    outputs |= {f"{Stage.PREPROCESSING.value}_{n}": pc for n, pc in enumerate(dead.failed_preprocessing)}
    outputs |= {f"{Stage.POSTPROCESSING.value}_{n}": pc for n, pc in enumerate(dead.failed_postprocessing)}
    for label, pcoll in outputs.items():
        _ = pcoll | f"Collect-{label}" >> beam.Map(collect, label)
    found = pipeline.run().metrics().query(beam.metrics.MetricsFilter().with_name("skipped_elements_counter"))
    return Counter(COLLECTED), max((one.result for one in found["counters"]), default=0)


def collect(value, label):
    COLLECTED.append((label, repr(value), "") if label == "prediction" else (label, repr(value[0]), value[1][1]))


@pytest.mark.large
@settings(max_examples=12)
@given(st.sampled_from(sorted(HANDLERS)), st.lists(st.integers(0, 40), max_size=15), st.integers(1, 6))
def test_predict_equals_the_pipeline(name, elements, size):
    totals = Totals()
    with subscribed(totals):
        local = list(predict(HANDLERS[name], elements, on_failure="yield", batching=fixed(size)))
    assert (Counter(map(as_pair, local)), totals.skipped) == through_beam(HANDLERS[name], elements, fixed(size))
    if name != "batches":
        assert len(local) + totals.skipped == len(elements)


@settings(max_examples=25)
@given(
    st.sampled_from(["plain", "processed", "keyed", "by key"]),
    st.lists(st.integers(0, 40), max_size=40),
    st.integers(1, 9),
    st.booleans(),
)
def test_batched_equals_one_by_one(name, elements, size, ordered):
    def run(batch_size):
        options = {"on_failure": "yield", "batching": fixed(batch_size), "ordered": ordered}
        return list(map(as_pair, predict(HANDLERS[name], elements, **options)))

    # The breaker gives batches up when everything fails; a good element for each model keeps it shut.
    elements = [element for given in elements for element in (given, 0, 1)]
    together, alone = run(size), run(1)
    assert together == alone if ordered else Counter(together) == Counter(alone)
