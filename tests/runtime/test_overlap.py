"""Batches run in the background only if that has proved to save time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.background import AdaptiveOverlap


def simulate(batches, *, call=0.1, idle=0.1, gain=1.0, size=lambda n: 32):
    """Whether each batch ran in the background, where overlap saves ``gain`` times the shorter part of its time."""
    policy, beside = AdaptiveOverlap(), []
    for n in range(batches):
        beside.append(policy.next_in_background())
        if beside[-1]:
            policy.record_background(size(n), call + idle - gain * min(call, idle))
        else:
            policy.record_inline(size(n), call, call + idle)
    return beside


def test_overlap_is_used_for_nearly_all_batches_if_it_halves_the_time():
    beside = simulate(1000)
    assert not any(beside[:3])
    assert sum(beside) > 970
    assert not all(beside[500:])


@pytest.mark.parametrize(
    "times", [{"call": 0.0019}, {"idle": 0.0004}, {"call": 1, "idle": 0.05}, {"call": 0.0}, {"idle": 0.0}]
)
def test_overlap_is_not_used_without_a_gain(times):
    assert not any(simulate(1000, **times))


def test_overlap_without_a_gain_is_tried_ever_more_rarely():
    beside = simulate(10_000, gain=0.05)
    assert 0 < sum(beside) < 150
    assert sum(beside[5000:]) <= 48


def test_overlap_that_pays_later_is_found():
    policy, late = AdaptiveOverlap(), 0
    for n in range(8000):
        pays = n > 1000
        if policy.next_in_background():
            policy.record_background(32, 0.1 if pays else 0.2)
            late += pays
        else:
            policy.record_inline(32, 0.1, 0.2)
    assert late > 5000


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1), st.floats(0, 1)), max_size=300))
def test_overlap_periods_are_finite_for_any_times(batches):
    policy, in_a_row = AdaptiveOverlap(), 0
    for size, call, idle in batches * 3:
        if policy.next_in_background():
            policy.record_background(size, call)
            in_a_row += 1
        else:
            policy.record_inline(size, call, call + idle)
            in_a_row = 0
        assert in_a_row <= 128
