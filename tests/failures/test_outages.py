"""When requests that fail in a row are an outage: under any share of bad requests, and not for bad ones alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.failures.outages import FailureStreak


def fails(streak, in_flight=0):
    """After how many failures the endpoint is down."""
    for count in range(1, 10_000):
        streak.failed(0.0, in_flight)
        if streak.is_outage:
            return count
    raise AssertionError("never")


def after(*outcomes):
    """A streak after requests that were answered, or failed."""
    streak = FailureStreak()
    for is_answered in outcomes:
        if is_answered:
            streak.answered()
        else:
            streak.failed(0.0, 0)
    return streak


def test_five_failures_in_a_row_are_an_outage_at_first_and_three_when_failures_are_rare():
    assert fails(FailureStreak()) == 5
    assert fails(after(*[True] * 150)) == 3


def test_answer_ends_an_outage_and_the_next_one_is_found_as_soon():
    streak = after(*[True] * 200)
    for _ in range(3):
        assert fails(streak) == 3
        for _ in range(100):
            streak.failed(0.0, 0)
        streak.answered()
        assert not streak.is_outage
        for _ in range(300):
            streak.answered()


@pytest.mark.parametrize(("in_flight", "enough"), [(10, 3), (40, 10), (100, 25), (1000, 25)])
def test_quarter_of_those_in_flight_has_to_fail(in_flight, enough):
    assert fails(after(*[True] * 200), in_flight) == enough


@pytest.mark.parametrize(
    ("share", "most"), [(0.0, 0), (0.01, 0), (0.1, 0), (0.3, 0), (0.5, 2), (0.7, 10), (0.9, 60), (0.95, 200)]
)
def test_bad_requests_are_hardly_ever_taken_for_an_outage(share, most):
    """Of 20,000 requests, so few come while the endpoint is thought to be down; each of them is a second of waiting."""
    for seed in range(3):
        chance, streak, probes = random.Random(seed), FailureStreak(), 0
        for _ in range(20_000):
            probes += streak.is_outage
            if chance.random() < share:
                streak.failed(0.0, 0)
            else:
                streak.answered()
        assert probes <= most


def test_outage_that_lasts_as_long_as_the_patience_is_doubted_and_then_twice_as_many_have_to_fail():
    streak = FailureStreak(patience_secs=10.0)
    assert fails(streak) == 5
    assert (streak.began, streak.doubts(8.9, 0), streak.is_outage) == (0.0, False, True)
    assert (streak.doubts(9.0, 0), streak.is_outage) == (True, False)
    assert fails(streak) == 10
    assert streak.doubts(9.0, 50)
    assert fails(streak) == 50
    assert streak.began == 0.0
    streak.answered()
    assert (streak.began, streak.doubts(100.0, 0)) == (None, False)
    assert fails(streak) <= 10


@given(st.lists(st.booleans(), max_size=400), st.integers(0, 1000))
def test_outage_is_found_whatever_came_before_and_never_by_two_failures(outcomes, in_flight):
    streak = after(*outcomes, True)
    assert not streak.is_outage
    assert 3 <= fails(streak, in_flight) <= 1500
    streak.answered()
    assert not streak.is_outage
