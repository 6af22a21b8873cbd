"""When a budget is spent, what was paid for has its outcome, however batches form; and nothing is lost quietly."""

from __future__ import annotations

import pytest

from headrace import (
    Budget,
    BudgetError,
    KeyedModelHandler,
    KeyModelMapping,
    RetryConfig,
    predict,
)
from headrace.local import predict as predict_module
from metered import ASKED, EACH_COSTS_ONE, Metered
from toys import Acting, Poisoned, each

pytestmark = pytest.mark.usefixtures("module_travels", "requests_end")


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
    assert found[:paid] == [2 * n for n in sorted(ASKED)]
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
