"""Each result keeps its own element's timestamp, window and pane, sorted by length or from a fallback."""

from __future__ import annotations

import operator
from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.transforms import window
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import KeyedModelHandler
from headrace.beam import PredictionResult, RunInference
from pipelines import by_second
from toys import Acting, each, fixed

NEGATED = Acting(each(operator.neg))


@settings(max_examples=8)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=25),
    st.integers(1, 9),
    st.sampled_from([window.GlobalWindows(), window.FixedWindows(7), window.SlidingWindows(9, 3), window.Sessions(4)]),
)
def test_elements_are_inferred_once_and_have_the_windows_of_a_plain_map(make_run, elements, size, windowing):
    run = make_run()
    pcoll = by_second(run, "Elements", [(n, n) for n in elements], windowing)
    ours = pcoll | RunInference(NEGATED, batching=fixed(size))
    ours, plain = run.collect(ours=ours, plain=pcoll | "Plain" >> beam.Map(operator.neg))
    assert Counter(ours) == Counter(plain)
    assert run.metrics()["RunInference", "num_inferences"] == len(elements)


TEXTS = ["a", "bbbb", "cc", "dddd", None, "e"]


def paddings(batch):
    return [max(map(len, batch)) - len(text) for text in batch]


class Sorting(Acting):
    def default_length_fn(self):
        return lambda text: len(text or "")


def test_predictions_and_dead_letters_keep_what_belongs_to_their_elements(run):
    pairs = by_second(run, "texts", [((n, text), 5 * n) for n, text in enumerate(TEXTS)])
    handler = KeyedModelHandler(Sorting(paddings, min_batch_size=2, max_batch_size=2))
    good, dead = pairs | RunInference(handler).with_exception_handling()
    found, letters = run.collect(good=good, dead=dead.failed_inferences)
    span = [(0, 10), (0, 10), (10, 20), (10, 20), (20, 30), (20, 30)]
    padding = {0: 1, 1: 0, 2: 0, 3: 0, 5: 0}
    assert sorted(found) == [((n, padding[n]), 5 * n, span[n]) for n in padding]
    assert [(letter[0], time, where) for letter, time, where in letters] == [([(4, None)], 20, span[4])]
    assert ("RunInference", "useful_length") in run.metrics()


def squares(no_multiples_of, **options):
    """A handler that refuses multiples of a number."""

    def act(batch):
        if any(example % no_multiples_of == 0 for example in batch):
            raise ValueError("a multiple")
        return [PredictionResult(one, one**2) for one in batch]

    return Acting(act, **options)


@pytest.mark.parametrize(
    ("place", "waits"),
    [({}, False), ({"isolate": True}, True), pytest.param({"placement": "machine"}, False, marks=pytest.mark.large)],
)
def test_answers_of_the_fallback_keep_their_windows(run, place, waits):
    elements = by_second(run, "Elements", [(n, n) for n in range(1, 31)])
    elements.is_bounded = not waits
    handler = squares(3, max_batch_size=4, max_batch_duration_secs=1000)
    infer = RunInference(handler, fallback=squares(5), **place)
    good, bad = elements | infer.with_exception_handling()
    letters = bad.failed_inferences | beam.MapTuple(lambda element, error: (element, error[1]))
    found, failed = run.collect(good=good, letters=letters)
    expected = [(n, n**2, n, n // 10 * 10) for n in range(1, 31) if n % 15]
    assert sorted((one.example, one.inference, time, span[0]) for one, time, span in found) == expected
    assert sorted((one[0], time, span[0]) for one, time, span in failed) == [([15], 15, 10), ([30], 30, 30)]
    assert all("ValueError: a multiple; the fallback failed, too" in one[1] for one, _, _ in failed)
    metrics = run.metrics()
    assert metrics["RunInference", "num_inferences"] == 28
    assert metrics["RunInference", "fallback-_num_inferences"] == 8
