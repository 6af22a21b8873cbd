"""Requests that an endpoint refuses by chance: they are sent again, and slow nothing down."""

from __future__ import annotations

import statistics

import pytest

from headrace.failures.outages import Verdict
from headrace.testing.simulated_endpoint import LATENCY, TokenBucket
from quotas import SimulatedEndpoint, SlidingWindow, Windows, steps


def small_bucket(quota):
    return TokenBucket(quota, burst=0.1)


@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize(
    ("quota", "each", "seconds", "processes", "used", "refused"),
    [
        (small_bucket, 200, 60, 1, 0.95, 0.025),
        (small_bucket, 200, 60, 4, 0.95, 0.03),
        (small_bucket, 1000, 40, 1, 0.93, 0.02),
        (TokenBucket, 5, 2000, 1, 0.8, 0.045),
        (TokenBucket, 20, 500, 1, 0.93, 0.045),
        (TokenBucket, 200, 60, 1, 0.95, 0.045),
        (TokenBucket, 1000, 40, 1, 0.95, 0.035),
        (Windows, 200, 60, 1, 0.92, 0.035),
        (Windows, 1000, 40, 1, 0.9, 0.03),
        (SlidingWindow, 200, 60, 1, 0.9, 0.03),
    ],
)
def test_quota_is_used_although_some_are_refused_by_chance(quota, each, seconds, processes, used, refused, share):
    found = SimulatedEndpoint(quota(steps((0, each))), processes=processes, at_random=share).run(seconds)
    assert found.rate(0, seconds) >= used * each
    assert found.share_refused - share < refused


@pytest.mark.parametrize(
    ("quota", "each", "seconds", "share", "median", "least"),
    [
        (small_bucket, 400, 20, 0.02, 0.97, 0.95),
        (small_bucket, 400, 30, 0.2, 0.65, 0.6),
        (small_bucket, 50, 200, 0.2, 0.9, 0.85),
    ],
)
def test_quota_is_used_whatever_is_refused_by_chance(quota, each, seconds, share, median, least):
    runs = [SimulatedEndpoint(quota(steps((0, each))), at_random=share, seed=seed).run(seconds) for seed in range(1, 5)]
    rates = [found.rate(0, seconds) for found in runs]
    assert statistics.median(rates) >= median * each
    assert min(rates) >= least * each


@pytest.mark.parametrize("seed", [22, 25, 38])
def test_end_of_a_burst_is_not_taken_for_the_quota(seed):
    """At first requests come in bursts, whose ends are refused."""
    found = SimulatedEndpoint(small_bucket(steps((0, 400))), at_random=0.05, seed=seed).run(20)
    assert found.rate(0, 20) >= 0.9 * 400


def test_endpoint_that_refuses_by_chance_alone_is_used():
    found = SimulatedEndpoint(at_random=0.05, most=100).run(30)
    assert found.rate(15, 30) >= 0.9 * 100 / LATENCY * 0.95


@pytest.mark.parametrize(("share", "median", "least"), [(0.01, 0.95, 0.9), (0.05, 0.95, 0.9), (0.1, 0.9, 0.8)])
def test_endpoint_that_refuses_by_chance_alone_is_used_from_the_start(share, median, least):
    found = [SimulatedEndpoint(at_random=share, most=20, seed=seed).run(30).rate(0, 30) for seed in range(1, 9)]
    assert statistics.median(found) >= median * 20 / LATENCY * (1 - share)
    assert min(found) >= least * 20 / LATENCY * (1 - share)


def test_rate_does_not_collapse_where_a_fifth_is_refused_by_chance_alone():
    found = [SimulatedEndpoint(at_random=0.2, most=20, seed=seed).run(30).rate(15, 30) for seed in range(1, 9)]
    assert statistics.median(found) >= 0.8 * 20 / LATENCY * 0.8


def test_endpoint_that_queues_and_refuses_by_chance_is_kept_busy():
    found = SimulatedEndpoint(workers=20, at_random=0.05).run(60)
    assert found.rate(20, 60) >= 0.9 * 20 / LATENCY


def test_quota_that_changes_is_followed_although_some_are_refused_by_chance():
    found = SimulatedEndpoint(small_bucket(steps((0, 1000), (20, 200), (40, 1000))), at_random=0.05).run(60)
    assert found.rate(10, 20) >= 0.9 * 1000
    assert 0.85 * 200 <= found.rate(30, 40) <= 1.05 * 200
    assert found.rate(50, 60) >= 0.85 * 1000


def test_outage_is_over_although_some_are_refused_by_chance():
    found = SimulatedEndpoint(TokenBucket(steps((0, 400))), outage=(10, 40), at_random=0.02).run(60)
    assert found.rate(45, 60) >= 0.9 * 400


@pytest.mark.parametrize(
    ("quota", "options", "settled", "seconds", "used"),
    [
        (TokenBucket, {"latency": lambda rng: 1.0}, 40, 100, 0.9),
        (TokenBucket, {"latency": lambda rng: 1.0, "latency_refused": 1.0}, 40, 100, 0.9),
        (small_bucket, {"latency": lambda rng: LATENCY * rng.choice([1, 2, 4, 8, 16])}, 30, 90, 0.88),
        (small_bucket, {"bad": 0.05, "verdict": Verdict.FAILED}, 0, 60, 0.93),
    ],
    ids=["slow answers", "slow refusals", "answers of all lengths", "requests that fail by themselves"],
)
def test_quota_is_used_whatever_answers_are_like(quota, options, settled, seconds, used):
    found = SimulatedEndpoint(quota(steps((0, 200))), at_random=0.02, **options).run(seconds)
    assert found.rate(settled, seconds) >= used * 200
