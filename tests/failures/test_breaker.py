"""The breaker opens after so many failures in a row, and one success closes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.failures.breaker import CircuitBreaker


@given(st.lists(st.booleans()), st.integers(1, 6))
def test_open_exactly_when_the_last_limit_batches_failed(history, limit):
    breaker = CircuitBreaker(limit)
    for position, succeeded in enumerate(history):
        breaker.record(succeeded=succeeded)
        recent = history[max(0, position + 1 - limit) : position + 1]
        assert breaker.is_open == (len(recent) == limit and not any(recent))


def test_five_by_default():
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.record(succeeded=False)
    assert not breaker.is_open
    breaker.record(succeeded=False)
    assert breaker.is_open
