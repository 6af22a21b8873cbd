"""Several fallbacks are tried in order: none of the elements is lost, and each says who answered."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    FallbackError,
    ModelHandler,
    PredictionResult,
    RetryConfig,
    Stage,
    predict,
)
from headrace.core.events import BatchCompleted, ElementFailed
from headrace.core.result import Failure
from headrace.metrics.totals import Totals
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from toys import Events, refuse, run

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


def of_size(size):
    return {"min_batch_size": size, "max_batch_size": size}


def chain(*known, kind=Only):
    """A handler, and its fallbacks."""
    first, *others = (kind(f"m{place}", set(one), **of_size(2)) for place, one in enumerate(known))
    return first, others


def answered(outcomes):
    return [(one.model_id, one.inference) for one in outcomes]


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_fallbacks_are_tried_in_order(place):
    first, others = chain([1, 4], [2, 1], [3, 2, 1])
    expected = [("m0", 10), ("m1", 20), ("m2", 30), ("m0", 40)]
    assert answered(predict(first, [1, 2, 3, 4], fallback=others, **place)) == expected
    assert place or (set(others[0].asked), set(others[1].asked)) == ({2, 3}, {3})


def test_element_that_all_fail_is_one_dead_letter_with_all_errors():
    first, others = chain([1], [2], [3])
    first, last = first.with_preprocess_fn(int), OnlyTwo("m2", {3})
    events = Events()
    worker = open_worker(catching(prepare(first, InferenceRequest(fallback=[others[0], last])), Exception))
    try:
        outcomes = run(worker, ["1", "2", "3", "4"], events)
    finally:
        worker.close()
    (failure,) = [one for one in outcomes if isinstance(one, Failure)]
    assert (failure.tag, failure.stage, failure.index, failure.element) == (3, Stage.INFERENCE, 0, 4)
    assert str(failure.error) == (
        "KeyError: 'm0'; the fallback failed, too: KeyError: 'm1'; the fallback failed, too: ValueError: m2"
    )
    assert (type(failure.error.first), type(failure.error.fallback)) == (KeyError, ValueError)
    assert failure.attempts >= 3
    assert len(outcomes) == 4
    assert [event.stage for event in events.of(ElementFailed)] == [Stage.INFERENCE]


@pytest.mark.parametrize(("caught", "is_caught"), [(ValueError, True), (KeyError, False)])
def test_error_of_the_last_fallback_decides_whether_it_is_caught(caught, is_caught):
    first, others = chain([1], [2])
    spec = catching(prepare(first, InferenceRequest(fallback=[*others, OnlyTwo("m2", set())])), caught)
    worker = open_worker(spec)
    try:
        if is_caught:
            assert [type(one) is Failure for one in run(worker, [9], FanOut())] == [True]
        else:
            with pytest.raises(FallbackError):
                run(worker, [9], FanOut())
    finally:
        worker.close()


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_functions_of_a_fallback_are_its_own_and_what_they_fail_goes_on(place):
    first, (second, third) = chain([], [11, 12, 13, 14], [1, 2, 3])
    second = second.with_preprocess_fn(lambda n: n + 10 if n != 2 else refuse(2)(n)).with_postprocess_fn(
        lambda one: refuse(130)(one.inference)
    )
    third = third.with_postprocess_fn(lambda one: -one.inference)
    events = Events()
    spec = prepare(first.with_postprocess_fn(str), InferenceRequest(fallback=[second, third], **place))
    worker = open_worker(catching(spec, Exception))
    try:
        assert sorted(run(worker, [1, 2, 3, 4], events)) == ["-20", "-30", "110", "140"]
    finally:
        worker.close()
    assert events.of(ElementFailed) == []


def test_events_say_which_fallback_answered():
    first, others = chain([1], [2], [3, 4])
    events, totals = Events(), Totals()
    worker = open_worker(prepare(first, InferenceRequest(fallback=others)))
    try:
        bundle = worker.bundle(FanOut(events, totals))
        outcomes = [out for n in (1, 2, 3, 4) for out in bundle.add(n, n)] + list(bundle.finish())
    finally:
        worker.close()
    assert sum(len(one.tags) for one in outcomes) == 4
    completed = [(one.model, one.examples) for one in events.of(BatchCompleted)]
    assert {model for model, _ in completed} == {"", "fallback", "fallback2"}
    assert totals.from_fallback == 3


@given(
    known=st.lists(st.sets(st.integers(0, 9)), min_size=2, max_size=4),
    elements=st.lists(st.integers(0, 9), max_size=12),
    size=st.integers(1, 4),
)
def test_first_one_that_can_answers_whatever_the_rest_do(known, elements, size):
    handlers = [Only(f"m{place}", one, **of_size(size)) for place, one in enumerate(known)]
    found = predict(handlers[0], elements, fallback=handlers[1:], on_failure="yield", retry=RetryConfig(attempts=1))
    for element, outcome in itertools.zip_longest(elements, found):
        able = [place for place, one in enumerate(known) if element in one]
        if isinstance(outcome, Failure):
            assert type(outcome.error) is FallbackError
        assert able or isinstance(outcome, Failure)
        # While a breaker is open a model is passed over, so a later one may answer.
        assert not able or outcome.model_id in {f"m{place}" for place in able}
