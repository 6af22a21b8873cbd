"""What samples see of an endpoint's limit."""

from __future__ import annotations

from headrace.core.phases import Look, Phase
from headrace.failures.concurrency import ConcurrencyLimit, FixedLimit
from headrace.failures.outages import Verdict


def test_a_look_tells_the_quota_and_that_requests_wait_for_it():
    limit = ConcurrencyLimit(0.0)
    assert limit.look() == Look([], {"in_flight": 0})
    now = 0.0
    while not limit.look().phases:
        left, _ = limit.take(now, 10)
        for place in range(left):
            limit.finished(now + 0.01, now, Verdict.REFUSED if place % 2 else Verdict.ANSWERED)
        now += 0.02
        assert now < 60
    assert limit.look().phases == [Phase.QUOTA]
    assert limit.look().gauges["quota"] < 1000
    limit.take(now, 0)
    assert limit.look().phases == []


def test_requests_in_flight_of_an_engine():
    limit = FixedLimit(3)
    limit.take(0.0, 5)
    assert limit.look() == Look(gauges={"in_flight": 3})
