"""How many requests may be in flight: simulated endpoints, with quotas, queues and outages."""

from __future__ import annotations

import math
import statistics

import pytest

from headrace.failures.concurrency import ConcurrencyLimit, Verdict
from simulated_endpoint import LATENCY, Simulation, TokenBucket, Windows, steps


def quota_of(value):
    return steps((0, value))


@pytest.mark.parametrize(
    ("quota", "each", "clients", "seconds"),
    [
        (TokenBucket, 1000, 1, 30),
        (Windows, 1000, 1, 30),
        (TokenBucket, 200, 1, 60),
        (Windows, 200, 1, 60),
        (TokenBucket, 400, 4, 60),
        (Windows, 400, 4, 60),
    ],
)
def test_quota_is_used_and_hardly_overrun(quota, each, clients, seconds):
    found = Simulation(quota(quota_of(each)), clients=clients).run(seconds)
    assert found.rate(0, seconds) >= 0.95 * each
    assert found.share_refused < 0.02


@pytest.mark.parametrize("quota", [TokenBucket, Windows])
def test_quota_that_changes_is_followed_within_five_seconds(quota):
    found = Simulation(quota(steps((0, 1000), (6, 200), (12, 1000)))).run(19)
    assert 0.9 * 200 <= found.rate(11, 12) <= 1.1 * 200
    assert found.rate(17, 19) >= 0.9 * 1000
    assert found.share_refused < 0.07


def test_quota_of_a_few_requests_a_minute_is_used():
    found = Simulation(TokenBucket(quota_of(1), burst=5), latency=lambda rng: 1.0).run(1200)
    assert found.rate(0, 1200) >= 0.95
    assert found.share_refused < 0.05


def test_quota_that_names_its_delays_is_used():
    found = Simulation(TokenBucket(quota_of(200)), retry_after=1.0).run(40)
    assert found.rate(0, 40) >= 0.95 * 200
    assert found.share_refused < 0.02


@pytest.mark.parametrize("workers", [3, 16])
def test_endpoint_that_queues_is_kept_busy_without_a_long_queue(workers):
    found = Simulation(workers=workers).run(30)
    assert found.rate(0, 30) >= 0.95 * workers / LATENCY
    assert statistics.mean(found.latencies) < 2.5 * LATENCY


def test_endpoint_that_queues_and_answers_unevenly_is_kept_busy():
    found = Simulation(workers=10, latency=lambda rng: rng.lognormvariate(-2, 1)).run(100)
    alone = math.exp(-1.5)
    assert found.rate(0, 100) >= 0.95 * 10 / alone
    assert statistics.mean(found.latencies) < 2 * alone


def test_latencies_that_only_differ_do_not_hold_back():
    found = Simulation(latency=lambda rng: rng.lognormvariate(-2, 0.7), most=100).run(40)
    assert found.limits[0].limit == 100


def test_outage_is_probed_once_a_second_and_over_within_two():
    found = Simulation(TokenBucket(quota_of(1000)), outage=(4, 34)).run(38)
    gaps = [later - earlier for earlier, later in zip(found.unheard, found.unheard[1:], strict=False) if earlier > 5]
    assert min(gaps) >= 1
    assert found.rate(36, 38) >= 0.95 * 1000


def test_probes_of_an_outage_may_hang():
    limit = ConcurrencyLimit(0.0, jitter=lambda: 0.0)
    for _ in range(5):
        limit.started(0.0)
        limit.finished(0.1, 0.0, Verdict.UNAVAILABLE)
    assert limit.outage_began == 0.1
    assert limit.wait(0.1) == 1
    limit.started(1.1)
    assert limit.wait(1.2) == pytest.approx(0.9)
    assert limit.wait(2.1) == 0


def test_requests_that_never_end_do_not_count_after_an_outage():
    limit = ConcurrencyLimit(0.0, jitter=lambda: 0.0)
    limit.started(0.0)
    for _ in range(5):
        limit.started(0.0)
        limit.finished(0.1, 0.0, Verdict.UNAVAILABLE)
    limit.started(1.1)
    limit.finished(1.2, 1.1, Verdict.ANSWERED)
    assert (limit.outage_began, limit.in_flight, limit.wait(1.2)) == (None, 0, 0)
    limit.finished(9.0, 0.0, Verdict.NOTHING)
    assert limit.in_flight == 0


def test_delay_that_the_endpoint_names_is_obeyed_by_all_if_it_refuses_all():
    limit = ConcurrencyLimit(0.0)
    for _ in range(5):
        limit.started(0.0)
        limit.finished(0.1, 0.0, Verdict.REFUSED, retry_after=30.0)
    assert limit.wait(0.1) == 30
    assert limit.is_throttled(0.1)


def test_requests_that_fail_by_themselves_teach_nothing():
    limit = ConcurrencyLimit(0.0)
    for _ in range(100):
        limit.started(0.0)
        limit.finished(0.1, 0.0, Verdict.NOTHING)
    assert (limit.limit, limit.in_flight, limit.wait(0.1)) == (1, 0, 0)


def test_larger_requests_are_not_taken_for_a_slower_endpoint():
    limit, now = ConcurrencyLimit(0.0, most=64), 0.0
    for size in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(100):
            started, now = now, now + 0.01 * size
            for _ in range(limit.limit):
                limit.started(started)
            for _ in range(limit.in_flight):
                limit.finished(now, started, Verdict.ANSWERED, size=size)
    assert limit.limit == 64
