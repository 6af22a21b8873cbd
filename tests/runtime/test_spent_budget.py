"""When a budget is spent, what was paid for has its outcome, however batches form; and nothing is lost quietly."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import (
    BatchingConfig,
    Budget,
    BudgetError,
    KeyedModelHandler,
    KeyModelMapping,
    Price,
    RetryConfig,
    predict,
)
from headrace.core.events import UsageReported
from headrace.core.remote import ElementRetry
from headrace.local import predict as predict_module
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare
from metered import ASKED, Metered
from toys import Acting, Events, Poisoned, each

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end")

EACH_COSTS_ONE = {"*": Price(request=1)}


def spend(handler, elements, limit, **options):
    """The outcomes until the budget is spent."""
    ASKED.clear()
    found = []
    with pytest.raises(BudgetError, match="is spent"):
        found.extend(predict(handler, elements, budget=Budget(limit, prices=EACH_COSTS_ONE), **options))
    return found


def alike(example):
    return 1.0


class Sorted(Metered):
    """Many batches leave together."""

    def batch_elements_kwargs(self):
        return {**super().batch_elements_kwargs(), "length_fn": alike, "lookahead": 200}


def test_what_was_paid_for_has_its_outcome_although_many_batches_leave_together():
    found = spend(Sorted(), range(100, 1000), 20, ordered=False)
    assert 20 <= len(ASKED) < 900
    assert sorted(found) == sorted(2 * n for n in ASKED)


def test_what_a_fallback_was_paid_for_has_its_outcome_although_preprocessed_elements_come_together():
    handler = Poisoned().with_preprocess_fn(lambda n: -n)
    fallback = Metered().with_preprocess_fn(abs)
    found = spend(handler, range(100, 1000), 20, fallback=fallback, isolate=True, ordered=False)
    assert 20 <= len(ASKED) < 900
    assert sorted(found) == sorted(2 * n for n in ASKED)


def test_what_a_fallback_was_paid_for_comes_in_order_although_many_outcomes_wait(monkeypatch):
    monkeypatch.setattr(predict_module, "_LONGEST_QUEUE", 10)

    def first(example):
        if example < 105:
            raise ValueError("too small")
        return example

    handler = Acting(each(first), min_batch_size=1, max_batch_size=1)
    found = spend(handler, range(100, 300), 1, fallback=Sorted())
    paid = len(ASKED)
    assert 1 <= paid < 5
    assert found[:paid] == [2 * n for n in ASKED]
    assert found[paid:] == list(range(105, 105 + len(found) - paid))


@pytest.mark.parametrize("limit", range(1, 8))
def test_what_was_paid_for_has_its_outcome_while_another_model_is_probed(limit):
    models = {"broken": Acting(lambda batch: 1 / 0, max_batch_size=1), "there": Metered()}
    handler = KeyedModelHandler([KeyModelMapping([key], model) for key, model in models.items()])
    elements = [("broken", n) for n in range(5)]
    elements += [(key, n) for n in range(100, 200) for key in ("there", "there", "broken")]
    options = {"fallback": Acting(lambda batch: [0 for _ in batch]), "placement": "process", "ordered": False}
    found = spend(handler, elements, limit, retry=RetryConfig(attempts=1), **options)
    assert sorted(value for key, value in found if key == "there") == sorted(2 * n for n in ASKED)


def test_bundles_that_share_a_batch_all_hear_that_the_budget_is_spent():
    batching = BatchingConfig(min_batch_size=64, max_batch_size=64, max_batch_duration_secs=30)
    spec = prepare(Metered(), InferenceRequest(batching=batching, budget=Budget(1, prices=EACH_COSTS_ONE)))
    workers = [open_worker(spec) for _ in range(3)]
    both_have_elements = threading.Barrier(3)

    def outcomes_of(worker):
        bundle = worker.bundle(Events())
        found = list(bundle.add(1, 0))
        both_have_elements.wait(60)
        with pytest.raises(BudgetError, match="is spent"):
            found += bundle.finish()
        return found

    try:
        workers[0].session.usage.priced(UsageReported("m", 1, 1))
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(outcomes_of, workers)) == [[], [], []]
    finally:
        for worker in workers:
            worker.close()


class SaysLater(Metered):
    """Has 3 requested again."""

    def request(self, batch, model, inference_args=None):
        answers = super().request(batch, model)
        return [ElementRetry(ValueError("3")) if n == 3 else one for n, one in zip(batch, answers, strict=True)]


def test_what_was_paid_for_has_its_outcome_although_the_rest_of_a_batch_that_bundles_share_is_not_sent():
    batching = BatchingConfig(min_batch_size=4, max_batch_size=4, max_batch_duration_secs=30)
    spec = prepare(
        SaysLater(num_retries=5), InferenceRequest(batching=batching, budget=Budget(1, prices=EACH_COSTS_ONE))
    )
    workers = [open_worker(spec) for _ in range(2)]
    both_have_elements = threading.Barrier(2)

    def outcomes_of(worker, elements):
        bundle, found = worker.bundle(Events()), []
        for element in elements:
            found += bundle.add(element, element)
        both_have_elements.wait(60)
        with pytest.raises(BudgetError, match="is spent"):
            found.extend(bundle.finish())
        return [(tag, value) for one in found for tag, value in zip(one.tags, one.values, strict=True)]

    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(outcomes_of, workers, [(0, 1), (2, 3)]))
        assert found == [[(0, 0), (1, 2)], [(2, 4)]]
    finally:
        for worker in workers:
            worker.close()
