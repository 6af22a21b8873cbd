"""Several fallbacks are tried in order: none of the elements is lost, and each says who answered."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import FallbackError, ModelHandler, PredictionResult, RetryConfig, Stage, predict
from headrace.core.events import BatchCompleted, ElementFailed
from headrace.core.result import Failure
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from http_endpoint import events_and_outcomes, failures_among
from toys import refuse, run

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end")


class Only(ModelHandler):
    """Answers for some examples, and says that it did."""

    def __init__(self, name, known, **options):
        super().__init__(**options)
        self.name = name
        self.known = known
        self.asked = []

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        self.asked += batch
        if not set(batch) <= self.known:
            raise KeyError(self.name)
        return [PredictionResult(one, one * 10, self.name) for one in batch]


class OnlyTwo(Only):
    """Of another class, so that its errors are told apart."""

    def run_inference(self, batch, model, inference_args=None):
        try:
            return super().run_inference(batch, model)
        except KeyError as error:
            raise ValueError(self.name) from error


def chain(*known, size=2):
    """A handler, and its fallbacks."""
    sizes = {"min_batch_size": size, "max_batch_size": size}
    first, *others = (Only(f"m{place}", set(one), **sizes) for place, one in enumerate(known))
    return first, others


def test_fallbacks_are_tried_in_order():
    first, others = chain([1, 4], [2, 1], [3, 2, 1])
    events, found = events_and_outcomes(first, [1, 2, 3, 4], fallback=others)
    answered = {one.example: (one.model_id, one.inference) for one in found}
    assert answered == {1: ("m0", 10), 2: ("m1", 20), 3: ("m2", 30), 4: ("m0", 40)}
    assert (set(others[0].asked), set(others[1].asked)) == ({2, 3}, {3})
    assert {event.model for event in events.of(BatchCompleted)} == {"", "fallback", "fallback2"}


def test_element_that_all_fail_is_one_dead_letter_with_all_errors():
    first, others = chain([1], [2], [3])
    first, last = first.with_preprocess_fn(int), OnlyTwo("m2", {3})
    events, outcomes = events_and_outcomes(first, ["1", "2", "3", "4"], fallback=[others[0], last])
    (failure,) = failures_among(outcomes)
    assert (failure.tag, failure.stage, failure.index, failure.element) == (3, Stage.INFERENCE, 0, 4)
    assert str(failure.error) == (
        "KeyError: 'm0'; the fallback failed, too: KeyError: 'm1'; the fallback failed, too: ValueError: m2"
    )
    assert (type(failure.error.first), type(failure.error.fallback)) == (KeyError, ValueError)
    assert failure.attempts >= 3
    assert len(outcomes) == 4
    assert [event.stage for event in events.of(ElementFailed)] == [Stage.INFERENCE]


@pytest.mark.parametrize(("caught", "is_caught"), [(ValueError, True), (KeyError, False)])
def test_error_of_the_last_fallback_decides_whether_it_is_caught(caught, is_caught, opened):
    first, others = chain([1], [2])
    worker = opened(catching(prepare(first, InferenceRequest(fallback=[*others, OnlyTwo("m2", set())])), caught))
    with nullcontext() if is_caught else pytest.raises(FallbackError):
        assert [type(one) for one in run(worker, [9])] == [Failure]


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_functions_of_a_fallback_are_its_own_and_what_they_fail_goes_on(place):
    first, (second, third) = chain([], [11, 12, 13, 14], [1, 2, 3])
    second = second.with_preprocess_fn(lambda n: n + 10 if n != 2 else refuse(2)(n)).with_postprocess_fn(
        lambda one: refuse(130)(one.inference)
    )
    third = third.with_postprocess_fn(lambda one: -one.inference)
    first = first.with_postprocess_fn(str)
    events, outcomes = events_and_outcomes(first, [1, 2, 3, 4], fallback=[second, third], **place)
    assert sorted(outcomes) == ["-20", "-30", "110", "140"]
    assert events.of(ElementFailed) == []


@given(
    known=st.lists(st.sets(st.integers(0, 9)), min_size=2, max_size=4),
    elements=st.lists(st.integers(0, 9), max_size=12),
    size=st.integers(1, 4),
)
def test_first_one_that_can_answers_whatever_the_rest_do(known, elements, size):
    first, others = chain(*known, size=size)
    found = predict(first, elements, fallback=others, on_failure="yield", retry=RetryConfig(attempts=1))
    for element, outcome in itertools.zip_longest(elements, found):
        able = [f"m{place}" for place, one in enumerate(known) if element in one]
        if isinstance(outcome, Failure):
            assert type(outcome.error) is FallbackError
        answered = [] if isinstance(outcome, Failure) else [outcome.model_id]
        assert set(answered) <= set(able)
        # While a breaker is open a model is passed over, so a later one may answer, or none. Five failures open it.
        assert answered == able[:1] or len(elements) >= 5
