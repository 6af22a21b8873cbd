"""Requests that an endpoint refuses by chance: they are sent again, and slow nothing down."""

from __future__ import annotations

import statistics

import pytest

from headrace.failures.outages import Verdict
from headrace.testing.simulated_endpoint import LATENCY, TokenBucket
from quotas import SimulatedEndpoint, SlidingWindow, Windows, steps


def small_bucket(quota):
    return TokenBucket(quota, burst=0.1)


@pytest.mark.parametrize("share", [0.01, 0.02, 0.05])
@pytest.mark.parametrize(
    ("quota", "each", "processes", "used", "refused"),
    [
        (small_bucket, 200, 1, 0.95, 0.025),
        (small_bucket, 200, 4, 0.95, 0.03),
        (small_bucket, 1000, 1, 0.93, 0.02),
        (TokenBucket, 200, 1, 0.95, 0.045),
        (TokenBucket, 1000, 1, 0.95, 0.035),
        (Windows, 200, 1, 0.92, 0.035),
        (Windows, 1000, 1, 0.9, 0.03),
        (SlidingWindow, 200, 1, 0.9, 0.03),
    ],
)
def test_quota_is_used_although_some_are_refused_by_chance(quota, each, processes, used, refused, share):
    seconds = 60 if each == 200 else 40
    found = SimulatedEndpoint(quota(steps((0, each))), processes=processes, at_random=share).run(seconds)
    assert found.rate(0, seconds) >= used * each
    assert found.share_refused - share < refused


@pytest.mark.parametrize("share", [0.02, 0.05])
@pytest.mark.parametrize(("each", "used"), [(5, 0.8), (20, 0.93)])
def test_quota_of_few_requests_is_used_although_some_are_refused_by_chance(each, used, share):
    found = SimulatedEndpoint(TokenBucket(steps((0, each))), at_random=share).run(10_000 / each)
    assert found.rate(0, 10_000 / each) >= used * each
    assert found.share_refused - share < 0.045


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


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_endpoint_that_refuses_by_chance_alone_is_used(share):
    found = SimulatedEndpoint(at_random=share, most=100).run(30)
    assert found.rate(15, 30) >= 0.9 * 100 / LATENCY * (1 - share)


@pytest.mark.parametrize(("share", "median", "least"), [(0.01, 0.95, 0.9), (0.05, 0.95, 0.9), (0.1, 0.9, 0.8)])
def test_endpoint_that_refuses_by_chance_alone_is_used_from_the_start(share, median, least):
    found = [SimulatedEndpoint(at_random=share, most=20, seed=seed).run(30).rate(0, 30) for seed in range(1, 9)]
    assert statistics.median(found) >= median * 20 / LATENCY * (1 - share)
    assert min(found) >= least * 20 / LATENCY * (1 - share)


def test_rate_does_not_collapse_where_a_fifth_is_refused_by_chance_alone():
    found = [SimulatedEndpoint(at_random=0.2, most=20, seed=seed).run(30).rate(15, 30) for seed in range(1, 9)]
    assert statistics.median(found) >= 0.8 * 20 / LATENCY * 0.8


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_endpoint_that_queues_and_refuses_by_chance_is_kept_busy(share):
    found = SimulatedEndpoint(workers=20, at_random=share).run(60)
    assert found.rate(20, 60) >= 0.9 * 20 / LATENCY


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_quota_that_changes_is_followed_although_some_are_refused_by_chance(share):
    found = SimulatedEndpoint(small_bucket(steps((0, 1000), (20, 200), (40, 1000))), at_random=share).run(60)
    assert found.rate(10, 20) >= 0.9 * 1000
    assert 0.85 * 200 <= found.rate(30, 40) <= 1.05 * 200
    assert found.rate(50, 60) >= 0.85 * 1000


def test_outage_is_over_although_some_are_refused_by_chance():
    found = SimulatedEndpoint(TokenBucket(steps((0, 400))), outage=(10, 40), at_random=0.02).run(60)
    assert found.rate(45, 60) >= 0.9 * 400


@pytest.mark.parametrize("refused", [LATENCY, 1.0])
def test_slow_answers_do_not_matter(refused):
    found = SimulatedEndpoint(
        TokenBucket(steps((0, 200))), latency=lambda rng: 1.0, latency_refused=refused, at_random=0.02
    ).run(100)
    assert found.rate(40, 100) >= 0.9 * 200


def test_length_of_answers_does_not_matter():
    found = SimulatedEndpoint(
        small_bucket(steps((0, 200))), latency=lambda rng: LATENCY * rng.choice([1, 2, 4, 8, 16]), at_random=0.02
    ).run(90)
    assert found.rate(30, 90) >= 0.88 * 200


def test_verdict_of_a_request_that_fails_by_itself_is_no_refusal():
    found = SimulatedEndpoint(small_bucket(steps((0, 200))), bad=0.05, verdict=Verdict.FAILED, at_random=0.02).run(60)
    assert found.rate(0, 60) >= 0.93 * 200
