"""A budget stops what it pays for: all that was requested has its outcome, and nothing more is requested."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from headrace import Budget, BudgetError, ElementRetry, KeyedModelHandler, KeyModelMapping, Price, RetryConfig, predict
from headrace.core.events import UsageReported
from headrace.local import predict as predict_module
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.usage_meter import UsageMeter
from metered import ASKED, EACH_COSTS_ONE, AsyncMetered, LocalMetered, Metered
from toys import Acting, Poisoned, each, run

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels")

BOTH = pytest.mark.parametrize("kind", [Metered, AsyncMetered])
PRICES = {"m": Price(input=1.0, output=2.0, request=0.5)}
A_REQUEST = 1.502
"""What one of ``Metered`` costs."""


@pytest.mark.parametrize(
    ("price", "cost"),
    [(Price(2.0), 2.0), (Price(2.0, 4.0, 0.25), 3.25), (Price(2.0, cached=0.5), 1.25), (Price(2.0, cached=0), 1.0)],
)
def test_meter_adds_up_costs(price, cost):
    meter = UsageMeter(Budget(prices={"m": price}))
    assert meter.priced(UsageReported("m", 1_000_000, 250_000, 1, cached_tokens=500_000)).cost == cost
    assert meter.priced(UsageReported("n", 1, 1)).cost is None
    assert meter.error is None


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(3.0, prices=PRICES), r"the budget of 3 is spent: 2 requests with 2,002,000 tokens cost 3\.004\.$"),
        (Budget(max_tokens=2_000_000), r"the budget of 2,000,000 tokens is spent: 2 requests took 2,002,000\.$"),
    ],
)
def test_meter_says_when_the_budget_is_spent(budget, said):
    meter = UsageMeter(budget)
    meter.priced(UsageReported("m", 1_000_000, 1000))
    assert meter.error is None
    meter.priced(UsageReported("m", 1_000_000, 1000))
    with pytest.raises(BudgetError, match=said):
        raise meter.error


def spend(handler, elements, budget, said="is spent", **options):
    """What comes out before the error, which says that."""
    ASKED.clear()
    found = []
    with pytest.raises(BudgetError, match=said):
        found.extend(predict(handler, elements, budget=budget, on_failure="yield", **options))
    return found


@BOTH
def test_what_was_requested_has_its_outcome_and_nothing_more_is_requested(kind):
    found = spend(kind(), range(100, 1000), Budget(20 * A_REQUEST, prices=PRICES))
    assert 20 <= len(ASKED) < 900
    assert found == [2 * n for n in range(100, 100 + len(ASKED))]
    assert sorted(ASKED) == list(range(100, 100 + len(ASKED)))


def test_retries_are_paid_for_and_end_with_the_budget():
    class Again(Metered):
        def request(self, batch, model, inference_args=None):
            super().request(batch, model)
            return [ElementRetry(ValueError("not yet")) for _ in batch]

    found = spend(Again(num_retries=1000), [1], Budget(5 * A_REQUEST, prices=PRICES))
    assert (found, ASKED) == ([], [1] * 5)


def test_outage_in_which_failures_are_billed_ends_with_the_budget():
    class Down(Metered):
        def request(self, batch, model, inference_args=None):
            super().request(batch, model)
            raise ConnectionResetError

    found = spend(Down(num_retries=20), range(100, 150), Budget(7 * A_REQUEST, prices=PRICES))
    assert 7 <= len(ASKED) <= 10
    assert found == []


def test_waiting_requests_are_not_sent_and_those_in_flight_are_delivered():
    """The last of twenty requests spends the budget while another is in flight, and others wait."""
    another_is_there = threading.Event()
    arrived = []

    class Slow(Metered):
        def request(self, batch, model, inference_args=None):
            if batch[0] >= 119:
                arrived.extend(batch)
                if len(arrived) >= 2:
                    another_is_there.set()
                another_is_there.wait(30)
            return super().request(batch, model)

    found = spend(Slow(), range(100, 1000), Budget(20 * A_REQUEST, prices=PRICES))
    assert found == [2 * n for n in sorted(ASKED)]
    assert set(arrived) <= set(ASKED)
    assert 21 <= len(ASKED) < 200


@pytest.mark.parametrize(
    ("model", "budget", "said"),
    [
        ("n", Budget(1000.0, prices=PRICES), "no price for 'n'; add it"),
        ("", Budget(max_tokens=1_000_000_000), r"Metered does not report .* headrace\.report_usage"),
    ],
)
def test_budget_that_cannot_be_kept_stops_at_the_first_requests(model, budget, said):
    found = spend(Metered(model), range(100, 1000), budget, said)
    assert len(found) == len(ASKED) < 20


@pytest.mark.parametrize("isolate", [False, True])
def test_calls_of_a_local_model_end_with_the_budget(isolate):
    handler = LocalMetered(min_batch_size=2, max_batch_size=2)
    found = spend(handler, [{"n": n} for n in range(40)], Budget(max_tokens=8), isolate=isolate)
    assert found == [2 * n for n in range(len(found))]
    assert 8 <= len(found) < 20


def test_models_by_key_spend_one_budget():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Metered("m")), KeyModelMapping(["b"], Metered("n"))])
    prices = {"m": Price(request=1), "n": Price(request=2)}
    elements = [(key, n) for n in range(100, 400) for key in "ab"]
    spend(handler, elements, Budget(30.0, prices=prices))
    assert 19 <= len(ASKED) < 400


def test_bundle_that_is_tried_again_requests_nothing():
    spec = catching(prepare(Metered(), InferenceRequest(budget=Budget(2 * A_REQUEST, prices=PRICES))), Exception)
    for asked in (2, 0, 0):
        ASKED.clear()
        with closing(open_worker(spec)) as worker, pytest.raises(BudgetError, match="is spent"):
            run(worker, range(100, 200))
        assert asked <= len(ASKED) < asked + 20
        assert bool(ASKED) is bool(asked)


@BOTH
def test_model_and_fallback_spend_one_budget_and_what_either_was_asked_has_its_outcome(kind):
    """The first one fails each element, and the fallback answers it, until the budget is spent."""
    fallback = kind().with_preprocess_fn(lambda n: n + 1)
    budget = Budget(40 * A_REQUEST, prices=PRICES)
    found = spend(kind(), [13] * 500, budget, fallback=fallback, ordered=False)
    assert 40 <= len(ASKED) < 500
    assert found == [28] * ASKED.count(14)
    assert found


def alike(example):
    return 1.0


class Sorted(Metered):
    """Many batches leave together."""

    def batch_elements_kwargs(self):
        return {**super().batch_elements_kwargs(), "length_fn": alike, "lookahead": 200}


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (Sorted(), {}),
        (Poisoned().with_preprocess_fn(lambda n: -n), {"fallback": Metered().with_preprocess_fn(abs), "isolate": True}),
    ],
    ids=["sorted", "preprocessed in a host"],
)
def test_what_was_paid_for_has_its_outcome_although_many_elements_leave_together(handler, options):
    found = spend(handler, range(100, 1000), Budget(20, prices=EACH_COSTS_ONE), ordered=False, **options)
    assert 20 <= len(ASKED) < 900
    assert sorted(found) == sorted(2 * n for n in ASKED)


def test_what_a_fallback_was_paid_for_comes_in_order_although_many_outcomes_wait(monkeypatch):
    monkeypatch.setattr(predict_module, "_LONGEST_QUEUE", 10)

    def first(example):
        if example < 105:
            raise ValueError("too small")
        return example

    handler = Acting(each(first), min_batch_size=1, max_batch_size=1)
    found = spend(handler, range(100, 300), Budget(1, prices=EACH_COSTS_ONE), fallback=Sorted())
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
    budget = Budget(limit, prices=EACH_COSTS_ONE)
    found = spend(handler, elements, budget, retry=RetryConfig(attempts=1), **options)
    assert sorted(value for key, value in found if key == "there") == sorted(2 * n for n in ASKED)
