"""Batches for which a handler returns another number of predictions than examples."""

from __future__ import annotations

import pandas
import pytest

from headrace import KeyedModelHandler, PredictionCountError, predict
from headrace.core.events import BatchFailed
from headrace.runtime.observers import subscribed
from toys import Acting, Events, fixed


def run(handler, elements, **options):
    """Predictions and failures of elements in one batch."""
    return list(predict(handler, elements, batching=fixed(len(elements)), **options))


@pytest.mark.parametrize("answer", [[], [1], [1, 2, 3], None], ids=repr)
def test_wrong_count_fails_its_whole_batch_at_once(answer):
    handler = Acting(lambda batch: answer if len(batch) == 2 else [5])
    with pytest.raises(PredictionCountError):
        run(handler, [1, 2])
    with subscribed(seen := Events()):
        failures = run(handler, [1, 2], on_failure="yield")
    assert [(one.tag, type(one.error), one.attempts) for one in failures] == [
        (0, PredictionCountError, 1),
        (1, PredictionCountError, 1),
    ]
    assert len(seen.of(BatchFailed)) == 1


@pytest.mark.parametrize("answer", [{"logits": [5]}, "x", 5, pandas.DataFrame({"a": [1]})], ids=repr)
@pytest.mark.parametrize("size", [1, 2])
def test_answer_that_is_no_list_of_predictions_is_refused(answer, size):
    handler = Acting(lambda batch: answer)
    for one, elements in ((handler, [1] * size), (KeyedModelHandler(handler), [("k", 1)] * size)):
        with pytest.raises(PredictionCountError, match=r"Acting\.run_inference was given"):
            run(one, elements)
        failures = run(one, elements, on_failure="yield")
        assert [(failure.tag, type(failure.error)) for failure in failures] == [
            (place, PredictionCountError) for place in range(size)
        ]


def test_wrong_answer_to_an_element_that_is_a_batch_is_refused():
    handler = Acting(lambda batch: {"logits": batch}).with_no_batching()
    with pytest.raises(PredictionCountError, match=r"Acting\.run_inference returned a dict with the keys 'logits'"):
        run(handler, [[1, 2]])
