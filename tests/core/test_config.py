"""Batching options are checked when they are given."""

from __future__ import annotations

import inspect
import math

import apache_beam as beam
import pytest

from headrace import BatchingConfig, Budget, ConfigurationError, PlacementConfig, Price, RetryConfig


def test_defaults_are_those_of_batch_elements():
    options = inspect.signature(beam.BatchElements.__init__).parameters
    ours = BatchingConfig()
    for name in ("min_batch_size", "max_batch_size", "target_batch_overhead", "target_batch_duration_secs", "variance"):
        assert getattr(ours, name) == options[name].default


def test_every_option_of_batch_elements_is_known():
    options = {name: None for name in inspect.signature(beam.BatchElements.__init__).parameters if name != "self"}
    given = {name: getattr(BatchingConfig(), name) for name in options}
    assert BatchingConfig.from_kwargs(given, owner=object()) == BatchingConfig()


def test_unknown_option_names_the_owner_and_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"object.batch_elements_kwargs.*'sise'.*max_batch_size"):
        BatchingConfig.from_kwargs({"sise": 3}, owner=object())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_batch_size": 0}, "min_batch_size must be at least 1"),
        ({"max_batch_size": 0}, "max_batch_size must be at least 1"),
        ({"min_batch_size": 9, "max_batch_size": 8}, "Minimum .9. must not be greater than maximum .8."),
        ({"target_batch_overhead": 1.5}, "between 0 and 1"),
        ({"target_batch_duration_secs": -1}, "must be positive"),
        ({"target_batch_overhead": None, "target_batch_duration_secs": None}, "At least one of"),
        ({"max_batch_weight": 5}, "requires element_size_fn"),
        ({"max_batch_weight": 0, "element_size_fn": len}, "must be positive"),
        ({"bucket_boundaries": [1, 2]}, "requires length_fn"),
        ({"bucket_boundaries": [2, 1], "length_fn": len}, "sorted list of positive"),
        ({"bucket_boundaries": [], "length_fn": len}, "non-empty"),
        ({"variance": -1.0}, "variance"),
        ({"min_batch_size": "3"}, "min_batch_size must be an int, not '3'"),
        ({"max_batch_size": 2.5}, "max_batch_size must be an int, not 2.5"),
        ({"max_batch_size": None}, "max_batch_size must be an int, not None"),
        ({"max_batch_duration_secs": "3"}, "max_batch_duration_secs must be a number, not '3'"),
        ({"max_batch_duration_secs": -1}, "max_batch_duration_secs must be finite and at least 0, not -1"),
        ({"max_batch_duration_secs": float("nan")}, "max_batch_duration_secs must be finite"),
        ({"element_size_fn": 3}, "element_size_fn must be callable, not 3"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        BatchingConfig(**options)


def test_placement_and_retry_options_are_checked():
    with pytest.raises(ConfigurationError, match="'process', 'machine' or 'auto'"):
        PlacementConfig("moon")
    for attempts in (0, 1.5, None):
        with pytest.raises(ConfigurationError, match="attempts must be an int, at least 1"):
            RetryConfig(attempts)
    for seconds in (0, -1, float("inf"), float("nan"), "45"):
        with pytest.raises(ConfigurationError, match="timeout_secs must be a positive number of seconds"):
            RetryConfig(timeout_secs=seconds)
        with pytest.raises(ConfigurationError, match="max_retry_after_secs must be a number of seconds"):
            RetryConfig(max_retry_after_secs=seconds or "0")
    with pytest.raises(ConfigurationError, match="retryable must be a function"):
        RetryConfig(retryable=ConnectionError())


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
        {"max_cost_per_row": 1.0},
        {"max_cost_per_row": 0, "prices": {"m": Price()}},
    ],
)
def test_budget_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"budget|prices|max_tokens|max_cost_per_row"):
        Budget(**wrong)


def test_price_of_a_model_is_its_own_or_that_of_all_others():
    budget = Budget(1.0, prices={"m": Price(1.0), "*": Price(2.0)})
    assert budget.price_of("m") == Price(1.0)
    assert budget.price_of("n") == Price(2.0)
    assert Budget(prices={"m": Price()}).price_of("n") is None
