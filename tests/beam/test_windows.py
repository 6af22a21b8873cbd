"""Each result keeps its own element's timestamp, window and pane, also where elements are sorted by length."""

from __future__ import annotations

from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.transforms import window
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import KeyedModelHandler
from headrace.beam import ModelHandler, RunInference
from pipelines import by_second


class Echo(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        if any(example % 10 == 3 for example in batch):
            raise ValueError("three")
        return [-example for example in batch]

    def get_metrics_namespace(self):
        return "Echo"


@pytest.mark.parametrize("size", [2, 100])
def test_element_in_several_windows_is_inferred_once_and_comes_out_in_each(run, size):
    elements = [1, 2, 4, 5, 6, 7, 8]
    handler = Echo(min_batch_size=size, max_batch_size=size)
    stamped = by_second(run, "Elements", [(n, n) for n in elements], window.SlidingWindows(6, 2))
    found = run.collect(results=stamped | RunInference(handler))
    expected = [(-n, n, (s, s + 6)) for n in elements for s in range(n // 2 * 2 - 4, n + 1, 2)]
    assert Counter(found) == Counter(expected)
    assert run.metrics()["Echo", "num_inferences"] == len(elements)


@settings(max_examples=8)
@given(
    st.lists(st.integers(0, 30).filter(lambda n: n % 10 != 3), min_size=1, max_size=25),
    st.integers(1, 9),
    st.sampled_from([window.GlobalWindows(), window.FixedWindows(7), window.SlidingWindows(9, 3), window.Sessions(4)]),
)
def test_results_have_the_windows_of_a_plain_map(make_run, elements, size, windowing):
    run = make_run()
    pcoll = by_second(run, "Elements", [(n, n) for n in elements], windowing)
    handler = Echo(min_batch_size=size, max_batch_size=size)
    ours, plain = run.collect(ours=pcoll | RunInference(handler), plain=pcoll | "Plain" >> beam.Map(lambda n: -n))
    assert Counter(ours) == Counter(plain)


TEXTS = ["a", "bbbb", "cc", "dddd", None, "e"]


class Padding(ModelHandler):
    """Predicts how much a text is padded, and refuses what is no text."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [max(map(len, batch)) - len(text) for text in batch]

    def default_length_fn(self):
        return lambda text: len(text or "")


def test_predictions_and_dead_letters_keep_what_belongs_to_their_elements(run):
    pairs = by_second(run, "texts", [((n, text), 5 * n) for n, text in enumerate(TEXTS)])
    handler = KeyedModelHandler(Padding(min_batch_size=2, max_batch_size=2))
    good, dead = pairs | RunInference(handler).with_exception_handling()
    found, letters = run.collect(good=good, dead=dead.failed_inferences)
    span = [(0, 10), (0, 10), (10, 20), (10, 20), (20, 30), (20, 30)]
    padding = {0: 1, 1: 0, 2: 0, 3: 0, 5: 0}
    assert sorted(found) == [((n, padding[n]), 5 * n, span[n]) for n in padding]
    assert [(letter[0], time, where) for letter, time, where in letters] == [([(4, None)], 20, span[4])]
    assert ("RunInference", "useful_length") in run.metrics()
