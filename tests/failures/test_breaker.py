"""What is tried less while it fails: batches, whose rows are probed; and loads, which batches then do not wait for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import RetryConfig
from headrace.core.result import Caught
from headrace.failures.breaker import (
    CALLS,
    HOSTS,
    TIMEOUTS,
    CircuitBreaker,
    LoadPolicy,
    Probing,
    survive_one_death,
)
from headrace.failures.recovery import Recovery
from headrace.failures.retry import RetryBudget
from headrace.hosts.provider import DeviceLostInHostError, HostFailure, load_error
from headrace.testing import FakeClock


@given(st.lists(st.booleans()), st.integers(1, 6))
def test_breaker_is_open_exactly_when_the_last_limit_batches_failed(history, limit):
    breaker = CircuitBreaker(limit)
    for position, succeeded in enumerate(history):
        breaker.record(succeeded=succeeded)
        recent = history[max(0, position + 1 - limit) : position + 1]
        assert breaker.is_open == (len(recent) == limit and not any(recent))


def opened():
    breaker = CircuitBreaker(1)
    breaker.record(succeeded=False)
    return breaker


@given(st.lists(st.integers(1, 300), min_size=1), st.sampled_from([CALLS, HOSTS, TIMEOUTS, Probing(7, 2)]))
def test_probes_are_distinct_positions_as_many_as_are_needed(sizes, probing):
    breaker, probed = opened(), 0
    for size in sizes:
        places = breaker.probes(size, probing)
        assert places == sorted(set(places))
        assert set(places) <= set(range(size))
        assert len(places) == min(size, max(probing.at_first - probed, probing.later))
        probed += len(places)


def test_probing_starts_over_after_each_success():
    breaker = opened()
    for _ in range(2):
        assert [len(breaker.probes(20, HOSTS)) for _ in range(3)] == [20, 12, 3]
        breaker.record(succeeded=True)


@given(st.integers(3, 64))
def test_every_position_is_probed_eventually(size):
    """Good elements may always stand in the same place of their batch."""
    breaker = opened()
    assert {place for _ in range(10 * size) for place in breaker.probes(size, Probing(0, 3))} == set(range(size))


class Rows:
    """A model that fails each call with a bad row in it."""

    def __init__(self, rows):
        self.rows, self.calls = rows, 0

    def __call__(self, places):
        self.calls += 1
        return Caught(ValueError(), []) if any(self.rows[place] for place in places) else places


def simulated(share, size, bad_before, rows=50_000, seed=1):
    """Calls made and good rows lost, for rows bad with a probability, after a run of rows that are all bad."""
    randomness = random.Random(f"{share} {size} {seed}")
    rows = [1] * bad_before + [int(randomness.random() < share) for _ in range(rows)]
    clock = FakeClock()
    budget = RetryBudget(RetryConfig(), clock.time_ns, clock.sleep)
    breaker, model, found, calls_before = CircuitBreaker(), Rows(rows), 0, 0
    for start in range(0, len(rows), size):
        if start == bad_before:
            calls_before = model.calls
        found += batch(breaker, budget, model, range(start, min(start + size, len(rows))))
    return model.calls - calls_before, rows.count(0) - found


def batch(breaker, budget, model, rows):
    """Goes through one as the runtime does; returns how many rows have a prediction."""
    answer = model(rows)
    if not isinstance(answer, Caught):
        breaker.record(succeeded=True)
        return len(rows)
    recovery = Recovery(
        lambda positions: model([rows[place] for place in positions]), budget, breaker, caught=Exception
    )
    results = recovery.results(len(rows), answer)
    return sum(len(one.positions) for one in results if not isinstance(one.answer, Caught))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("size", "bad_before"), [(100, 500), (500, 2500)])
def test_good_rows_after_a_run_of_bad_ones_are_not_lost(share, size, bad_before):
    _, lost = simulated(share, size, bad_before, rows=5_000)
    assert lost == 0


@pytest.mark.parametrize("size", [100, 1000])
def test_calls_spent_on_a_dead_model_are_bounded(size):
    batches = 300
    calls, _ = simulated(1.0, size, 5 * size, rows=batches * size)
    assert calls - batches <= CALLS.at_first + CALLS.later * batches


def test_probes_pause_for_a_second_and_for_nine_times_as_long_as_they_took():
    breaker = CircuitBreaker()
    assert breaker.begins_try(5.0)
    assert not breaker.begins_try(1000.0)  # the first one is not over
    breaker.end_try(5.05)
    assert not breaker.begins_try(6.0)
    assert breaker.begins_try(6.1)
    breaker.end_try(8.1)
    assert not breaker.begins_try(26.0)
    assert breaker.begins_try(26.2)


ERROR, ANOTHER = RuntimeError("one"), RuntimeError("another")


@pytest.fixture
def record(clock):
    return LoadPolicy(clock.time_ns)


def test_one_death_is_forgiven_and_two_cost_a_pause_of_ten_times_the_last_attempt(record, clock):
    for secs in (0.5, 3.0):
        assert record.failed(ERROR, 1.0, timed_out=False)
        assert record.current_error() is None
        assert not record.failed(ANOTHER, secs, timed_out=False)
        clock.advance(10 * secs - 0.001)
        assert repr(record.current_error()) == repr(ANOTHER)
        clock.advance(0.002)
        assert record.current_error() is None


def test_a_timeout_is_not_forgiven_and_is_no_death(record, clock):
    assert not record.failed(ERROR, 1.0, timed_out=True)
    assert repr(record.current_error()) == repr(ERROR)
    clock.advance(11)
    assert record.failed(ERROR, 1.0, timed_out=False)


def test_a_success_clears_all_failures(record):
    record.failed(ERROR, 1.0, timed_out=False)
    record.loaded()
    assert record.failed(ERROR, 1.0, timed_out=False)
    record.failed(ERROR, 1.0, timed_out=False)
    record.loaded()
    assert record.current_error() is None


def test_a_load_that_keeps_raising_is_tried_ever_more_rarely(record, clock):
    pauses = []
    for _ in range(12):
        record.raised(ERROR, 0.01)
        begun = clock.time_ns()
        while repr(record.current_error()) == repr(ERROR):
            clock.advance(0.5)
        pauses.append((clock.time_ns() - begun) / 1e9)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    record.loaded()
    record.raised(ERROR, 0.5)
    clock.advance(4.9)
    assert repr(record.current_error()) == repr(ERROR)
    clock.advance(0.2)
    assert record.current_error() is None


@pytest.mark.parametrize(("results", "outcome"), [("g", "g"), ("dg", "g"), ("dd", "d"), ("ddg", "d"), ("gd", "g")])
def test_an_attempt_survives_one_death(results, outcome):
    assert survive_one_death(iter(results).__next__, lambda result: result == "d") == outcome


def test_a_load_whose_host_lost_the_device_may_be_caught_as_either():
    error = load_error(HostFailure(None, False, "lost its device", device_lost=True), "M", 5)
    assert type(error) is DeviceLostInHostError
    assert str(error) == "the host lost its device while it was loading the model of M."
