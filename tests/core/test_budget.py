"""A budget says what requests may cost, and refuses what says nothing."""

from __future__ import annotations

import math
import pickle

import pytest

from headrace import Budget, ConfigurationError, Price


@pytest.mark.parametrize("wrong", [{"input": -1}, {"output": math.inf}, {"request": "1"}, {"input": True}])
def test_price_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Price(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 1},
        {"limit": 0, "prices": {"m": Price()}},
        {"limit": math.nan, "prices": {"m": Price()}},
        {"prices": {"m": 1.0}},
        {"prices": [Price()]},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
    ],
)
def test_budget_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"budget|prices|max_tokens"):
        Budget(**wrong)


def test_price_of_a_model_is_its_own_or_that_of_all_others():
    budget = Budget(1.0, prices={"m": Price(1.0), "*": Price(2.0)})
    assert budget.price_of("m") == Price(1.0)
    assert budget.price_of("n") == Price(2.0)
    assert Budget(prices={"m": Price()}).price_of("n") is None


def test_budget_pickles():
    budget = Budget(1.0, prices={"m": Price(1.0)})
    assert pickle.loads(pickle.dumps(budget)) == budget
