"""Elements and predictions that do not pickle, or do not unpickle, fail alone."""

from __future__ import annotations

import threading

import pytest

from headrace import BatchingConfig, Failure, predict
from headrace.core.result import Stage
from headrace.testing import DoublingHandler
from toys import Acting, Unloadable, each

pytestmark = pytest.mark.large


def run(handler, elements=range(64)):
    return list(predict(handler, elements, isolate=True, on_failure="yield", batching=BatchingConfig(64, 64)))


def assert_only(outcomes, culprits):
    """Asserts that these failed, for these reasons, and that all others have predictions; returns the failures."""
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert list(failures) == list(culprits)
    assert all(words in str(failures[place].error) for place, words in culprits.items())
    predictions = [getattr(one, "inference", one) for one in outcomes if not isinstance(one, Failure)]
    assert predictions == [2 * n for n in range(64) if n not in culprits]
    return failures


def test_predictions_that_cannot_travel_fail_their_elements_alone():
    make = {13: threading.Lock, 40: Unloadable}
    outcomes = run(Acting(each(lambda example: make[example]() if example in make else 2 * example)))
    failures = assert_only(outcomes, {13: "lock", 40: "no number"})
    assert all((one.stage, one.index, one.element) == (Stage.INFERENCE, 0, n) for n, one in failures.items())


class Unpicklable:
    def __reduce__(self):
        raise ValueError("cannot be sent")


def test_elements_that_cannot_travel_fail_alone():
    odd = {13: Unpicklable(), 40: Unloadable()}
    outcomes = run(DoublingHandler().with_preprocess_fn(len), [odd.get(n, "x" * n) for n in range(64)])
    failures = assert_only(outcomes, {13: "cannot be sent", 40: "no number"})
    assert all(failures[n].element is odd[n] and isinstance(failures[n].error, ValueError) for n in odd)
