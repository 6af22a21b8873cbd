"""Unpicklable elements, predictions and exceptions fail alone; unpicklable handlers fail at construction."""

from __future__ import annotations

import threading

import pytest

from headrace import BatchingConfig, ConfigurationError, Failure, PlacementConfig, predict
from headrace.beam import RunInference
from headrace.core.result import Stage
from headrace.testing import DoublingHandler
from toys import Acting, Unloadable, each

pytestmark = pytest.mark.large


def run(handler, elements=range(64)):
    return list(predict(handler, elements, isolate=True, on_failure="yield", batching=BatchingConfig(64, 64)))


def the_failure(outcomes):
    """The only failure and its position; all other elements have predictions."""
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert len(failures) == 1
    assert len(outcomes) == 64
    return failures.popitem()


class Holder(DoublingHandler):
    """Holds what does not pickle."""

    def __init__(self):
        super().__init__()
        self.state = {"rows": (row for row in ())}


@pytest.mark.parametrize(
    "construct",
    [
        lambda: predict(Holder(), [1], isolate=True),
        lambda: predict(Holder(), [1], timeout=1),
        lambda: RunInference(Holder(), isolate=True),
        lambda: RunInference(Holder(), placement=PlacementConfig(isolate=True)),
        lambda: RunInference(Holder()).with_exception_handling(timeout=1),
        lambda: RunInference(Holder()).with_exception_handling(use_subprocess=True),
    ],
    ids=["isolated", "timed", "isolated in Beam", "placed in Beam", "timed in Beam", "in Beam's words"],
)
def test_unpicklable_handlers_are_refused_at_construction(construct):
    with pytest.raises(ConfigurationError, match=r"does not pickle.*generator.*load_model") as caught:
        construct()
    assert "\n" not in str(caught.value)
    assert RunInference(Holder())
    assert [one.inference for one in predict(Holder(), [1])] == [2]


class Guarded(DoublingHandler):
    """Computes under its lock; Beam's pickler recreates locks, too."""

    def __init__(self):
        super().__init__()
        self.lock, self.reentrant = threading.Lock(), threading.RLock()

    def run_inference(self, batch, model, inference_args=None):
        with self.lock, self.reentrant:
            return super().run_inference(batch, model)


@pytest.mark.parametrize("options", [{"timeout": 60}, {"placement": "machine"}])
def test_handlers_with_locks_run_where_they_have_to_be_pickled(options, module_travels):
    assert [one.inference for one in predict(Guarded(), [1, 2], **options)] == [2, 4]


def predicting(make):
    """A handler that predicts what ``make`` returns for the example 13; it doubles all others."""
    return Acting(each(lambda example: make() if example == 13 else 2 * example))


@pytest.mark.parametrize("make", [threading.Lock, Unloadable])
def test_a_prediction_that_cannot_travel_fails_its_element_alone(make):
    outcomes = run(predicting(make))
    place, failure = the_failure(outcomes)
    assert (place, failure.stage, failure.index, failure.element) == (13, Stage.INFERENCE, 0, 13)
    assert ("lock" if make is threading.Lock else "no number") in str(failure.error)
    assert [one for one in outcomes if one is not failure] == [2 * n for n in range(64) if n != 13]


class Unpicklable:
    """Refuses to be pickled."""

    def __reduce__(self):
        raise ValueError("cannot be sent")


each_odd_element = pytest.mark.parametrize(
    ("odd", "words"), [(Unpicklable(), "cannot be sent"), (Unloadable(), "no number")], ids=["to pickle", "to unpickle"]
)


@each_odd_element
def test_an_element_that_cannot_travel_fails_alone(odd, words):
    elements = ["x" * n for n in range(64)]
    elements[13] = odd
    outcomes = run(DoublingHandler().with_preprocess_fn(len), elements)
    place, failure = the_failure(outcomes)
    assert place == 13
    assert failure.element is odd
    assert isinstance(failure.error, ValueError)
    assert words in str(failure.error)
    assert [one.inference for one in outcomes if one is not failure] == [2 * n for n in range(64) if n != 13]
