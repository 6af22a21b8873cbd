"""How many requests may be in flight: simulated endpoints, with quotas, queues and outages."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from contextlib import contextmanager
from functools import partial

import pytest

from headrace.core.phases import Look, Phase
from headrace.core.request_context import Allowance
from headrace.failures.concurrency import ConcurrencyLimit, FixedLimit, MinuteBudget
from headrace.failures.endpoint_board import Board, Memory
from headrace.failures.outages import Verdict
from headrace.testing.simulated_endpoint import LATENCY, TokenBucket
from quotas import SimulatedEndpoint, SlidingWindow, Windows, steps


def quota_of(value):
    return steps((0, value))


def small_bucket(quota):
    """Holds what a tenth of a second brings."""
    return TokenBucket(quota, burst=0.1)


@pytest.mark.parametrize(
    ("quota", "each", "seconds", "refused", "options"),
    [
        (small_bucket, 1000, 20, 0.02, {}),
        (TokenBucket, 1000, 30, 0.02, {}),
        (TokenBucket, 200, 60, 0.02, {}),
        (TokenBucket, 400, 60, 0.08, {"clients": 4}),
        (Windows, 400, 60, 0.025, {"clients": 4}),
        (partial(TokenBucket, burst=5), 1, 1200, 0.05, {"latency": lambda rng: 1.0}),
        (small_bucket, 200, 40, 0.02, {"bad": 0.3, "verdict": Verdict.DECLINED}),
        (small_bucket, 200, 40, 0.02, {"bad": 0.3, "verdict": Verdict.FAILED}),
        *((quota, 200, 60, 0.02, {"retry_after": 1.0}) for quota in (TokenBucket, Windows, SlidingWindow)),
    ],
)
def test_quota_is_used_and_hardly_overrun(quota, each, seconds, refused, options):
    found = SimulatedEndpoint(quota(quota_of(each)), **options).run(seconds)
    assert found.rate(0, seconds) >= 0.95 * each
    assert found.share_refused < refused


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize(("quota", "each", "seconds"), [(small_bucket, 1000, 20), (small_bucket, 200, 40)])
def test_quota_is_used_and_hardly_overrun_by_the_processes_of_a_machine(quota, each, seconds, processes):
    found = SimulatedEndpoint(quota(quota_of(each)), processes=processes).run(seconds)
    assert found.rate(0, seconds) >= 0.95 * each
    assert found.share_refused < 0.02
    assert min(found.by_client) > 0.9 * len(found.accepted) / processes


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_quota_is_found_in_the_first_second(processes):
    found = SimulatedEndpoint(small_bucket(quota_of(1000)), processes=processes).run(1)
    assert found.rate(0.7, 1) >= 0.85 * 1000
    assert found.share_refused < 0.1


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("quota", [200, 1000])
def test_processes_get_equal_parts_of_a_quota_within_two_seconds(quota, processes):
    found = SimulatedEndpoint(small_bucket(quota_of(quota)), processes=processes).run(2)
    assert min(found.by_client) >= 0.8 * max(found.by_client)


def shifted_windows(quota):
    return Windows(quota, earlier=0.3)


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("quota", [Windows, shifted_windows, SlidingWindow])
@pytest.mark.parametrize(("each", "seconds"), [(1000, 30), (200, 60)])
def test_quota_of_a_second_is_used_and_hardly_overrun(quota, each, seconds, processes):
    """All that one accepts may leave before it refuses any; and what it frees later is what was accepted earlier."""
    found = SimulatedEndpoint(quota(quota_of(each)), processes=processes).run(seconds)
    assert found.rate(0, seconds) >= 0.95 * each
    assert found.share_refused < 0.022


def test_quota_is_shared_by_machines_that_know_nothing_of_each_other():
    found = SimulatedEndpoint(small_bucket(quota_of(200)), clients=2, joins=[0, 10]).run(100)
    assert found.rate(0, 100) >= 0.95 * 200
    assert found.share_refused < 0.02
    assert min(found.by_client) >= 0.3 * len(found.accepted)


@pytest.mark.parametrize(
    ("quota", "processes", "refused"),
    [(TokenBucket, 1, 0.06), (Windows, 1, 0.07), (small_bucket, 1, 0.025), (small_bucket, 2, 0.025)],
)
def test_quota_that_changes_is_followed_within_five_seconds(quota, processes, refused):
    found = SimulatedEndpoint(quota(steps((0, 1000), (6, 200), (12, 1000))), processes=processes).run(19)
    assert 0.9 * 200 <= found.rate(11, 12) <= 1.1 * 200
    assert found.rate(17, 19) >= 0.9 * 1000
    assert found.share_refused < refused


def test_process_that_is_killed_leaves_its_part_to_the_others():
    found = SimulatedEndpoint(small_bucket(quota_of(200)), processes=2, dies=10).run(20)
    assert found.rate(10, 20) >= 0.95 * 200
    found = SimulatedEndpoint(workers=16, processes=2, dies=10).run(20)
    assert found.rate(13, 20) >= 0.95 * 16 / LATENCY


def send(limit, times, verdict, **options):
    """Has requests leave, and end at once, one after another."""
    for now in times:
        limit.started(now)
        limit.finished(now, now, verdict, **options)


def test_request_that_is_declined_ends_a_pause_after_refusals():
    limit = ConcurrencyLimit(0.0)
    send(limit, [0.1] * 5, Verdict.REFUSED)
    assert limit.outage_began == 0.1
    send(limit, [1.0], Verdict.DECLINED)
    assert limit.outage_began is None


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("factor", [2.5, 20])
def test_endpoint_that_becomes_slower_for_good_is_asked_as_often_as_it_answers_side_by_side(factor, processes):
    latency = lambda _: LATENCY * (factor if len(endpoint.accepted) > 4000 else 1)  # noqa: E731
    endpoint = SimulatedEndpoint(most=20, latency=latency, processes=processes)
    assert endpoint.run(60).rate(50, 60) >= 0.95 * 20 * processes / (factor * LATENCY)


@pytest.mark.parametrize("processes", [1, 4])
def test_quota_that_others_have_used_up_is_probed_and_used_as_soon_as_it_is_renewed(processes):
    found = SimulatedEndpoint(small_bucket(steps((0, 0), (8, 400))), processes=processes).run(20)
    assert sum(time < 8 for time in found.refused) <= 15 * processes
    assert found.rate(10, 20) >= 0.9 * 400


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("workers", [3, 16])
def test_endpoint_that_queues_is_kept_busy_without_a_long_queue(workers, processes):
    """Processes that come later do not take its queue for its latency."""
    joins = [3.0 * each for each in range(processes)]
    found = SimulatedEndpoint(workers=workers, processes=processes, joins=joins).run(25)
    assert found.rate(0, 25) >= 0.95 * workers / LATENCY
    assert statistics.mean(found.latencies) < 2.5 * LATENCY


@pytest.mark.parametrize("workers", [4, 16])
def test_endpoint_that_queues_has_no_long_queue_of_machines_that_know_nothing_of_each_other(workers):
    """Each finds the endpoint slow whatever it does, since the others' requests wait there, too."""
    found = SimulatedEndpoint(workers=workers, clients=4, seed=9).run(100)
    assert found.rate(0, 100) >= 0.95 * workers / LATENCY
    assert statistics.mean(found.latencies[-workers * 500 :]) < 20 * LATENCY


def test_endpoint_that_loses_workers_has_no_long_queue():
    found = SimulatedEndpoint(workers=64).run(10)
    del found._free[4:]
    count = len(found.latencies)
    found.run(60)
    assert statistics.mean(found.latencies[count + 2000 :]) < 0.3


def test_endpoint_that_queues_has_no_long_queue_of_processes_that_begin_together():
    """Each of them has at least one request in flight; what they find out together they find out once."""
    found = SimulatedEndpoint(workers=3, processes=4).run(25)
    assert statistics.mean(found.latencies) < 4 * LATENCY


def test_endpoint_that_queues_and_answers_unevenly_is_kept_busy():
    found = SimulatedEndpoint(workers=10, latency=lambda rng: rng.lognormvariate(-2, 1)).run(100)
    alone = math.exp(-1.5)
    assert found.rate(0, 100) >= 0.95 * 10 / alone
    assert statistics.mean(found.latencies) < 2 * alone


def test_latencies_that_only_differ_do_not_hold_back():
    found = SimulatedEndpoint(latency=lambda rng: rng.lognormvariate(-2, 0.7), most=100).run(40)
    assert found.limits[0].limit == 100


@pytest.mark.parametrize("processes", [1, 4])
def test_outage_is_probed_once_a_second_by_each_process_and_over_within_two(processes):
    found = SimulatedEndpoint(TokenBucket(quota_of(1000)), outage=(4, 34), processes=processes).run(38)
    probes = [time for time in found.unheard if time > 5]
    assert all(later - earlier >= 1 for earlier, later in zip(probes, probes[processes:], strict=False))
    assert found.rate(36, 38) >= 0.95 * 1000


def test_probes_of_an_outage_may_hang():
    limit = ConcurrencyLimit(0.0, jitter=lambda: 0.0)
    send(limit, [0.1] * 5, Verdict.UNAVAILABLE)
    assert (limit.outage_began, limit.wait(0.1)) == (0.1, 1)
    limit.started(1.1)
    assert limit.wait(1.2) == pytest.approx(0.9)
    assert limit.wait(2.1) == 0


def test_requests_that_never_end_do_not_count_after_an_outage():
    limit = ConcurrencyLimit(0.0, jitter=lambda: 0.0)
    limit.started(0.0)
    send(limit, [0.1] * 5, Verdict.UNAVAILABLE)
    send(limit, [1.1], Verdict.ANSWERED)
    assert (limit.outage_began, limit.in_flight, limit.wait(1.2)) == (None, 0, 0)
    limit.finished(9.0, 0.0, Verdict.NOTHING)
    assert limit.in_flight == 0


def test_delay_that_the_endpoint_names_is_obeyed_by_all_if_it_refuses_all():
    limit = ConcurrencyLimit(0.0)
    for now in range(0, 16, 2):
        assert limit.wait(now) == 0
        send(limit, [now], Verdict.REFUSED, retry_after=30.0)
    assert limit.take(14, 1) == (0, 30)
    assert limit.is_throttled


def test_delay_that_the_endpoint_names_is_not_for_all_while_it_accepts_others():
    limit = ConcurrencyLimit(0.0, jitter=lambda: 0.0)
    send(limit, [0.1], Verdict.ANSWERED)
    send(limit, [0.2] * 5, Verdict.REFUSED, retry_after=30.0)
    assert limit.wait(0.2) == pytest.approx(0.03)
    for now in (2, 4, 6):
        assert limit.wait(now) == 0
        send(limit, [now], Verdict.REFUSED, retry_after=30.0)
    assert limit.wait(6) == 30


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.FAILED])
def test_process_whose_requests_all_fail_does_not_stop_the_others(verdict):
    memory = Memory()
    bad, good = (ConcurrencyLimit(0.0, board=Board(0.0, memory), jitter=lambda: 0.0) for _ in range(2))
    for now in range(1, 6):
        send(bad, [now], verdict)
        send(good, [now], Verdict.ANSWERED)
    assert (bad.outage_began, bad.wait(5)) == (5, 1)
    assert (good.outage_began, good.wait(5)) == (None, 0)


@pytest.mark.parametrize(
    ("allowed", "wait"),
    [(Allowance(False, 1, 60.0, 60), 0), (Allowance(False, 0, 30.0, None), 30), (Allowance(False, 0, 9e4, None), 60)],
)
def test_request_waits_while_nothing_is_left_of_a_limit(allowed, wait):
    limit = ConcurrencyLimit(0.0)
    send(limit, [1.0], Verdict.ANSWERED, allowed=[allowed])
    assert limit.wait(1.0) == wait


def test_turn_that_another_process_never_gives_back_is_not_waited_for():
    class Taken(Board):
        @contextmanager
        def turn(self):
            yield False

    memory = Memory()
    _, limit = Board(0.0, memory), ConcurrencyLimit(0.0, board=Taken(0.0, memory))
    tries = [limit.take(0.001 * each, 1)[0] for each in range(60)]
    assert tries.index(1) == 49


def test_requests_that_fail_by_themselves_teach_nothing():
    limit = ConcurrencyLimit(0.0)
    send(limit, [0.1] * 100, Verdict.NOTHING)
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


def test_request_that_leaves_when_an_outage_is_found_is_not_forgotten_with_those_before():
    limit = ConcurrencyLimit(0.0)
    for _ in range(6):
        limit.started(1.0)
    send(limit, [1] * 5, Verdict.FAILED)
    limit.finished(1.0, 0.5, Verdict.ANSWERED)
    assert limit.take(1.0, 1)[0] == 0
    assert limit.take(1.01, 1)[0] == 1
    limit.finished(1.02, 1.01, Verdict.NOTHING)
    assert limit.in_flight == 0


@pytest.mark.parametrize(("is_noticed", "least", "most"), [(True, 22, 33), (False, 34, 60)])
def test_client_that_computes_all_the_time_has_no_more_in_flight_than_that_takes(is_noticed, least, most):
    """Each request is 2 ms of computing and 50 ms of waiting."""
    limit, now = ConcurrencyLimit(0.0), 0.0
    for _ in range(60):
        count = limit.limit
        for _ in range(count):
            limit.started(now)
        limit.client_is_busy = is_noticed and count * 0.002 >= 0.85 * LATENCY
        for _ in range(count):
            limit.finished(now + max(LATENCY, count * 0.002), now, Verdict.ANSWERED)
        now += max(LATENCY, count * 0.002)
    assert least <= limit.limit <= most


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


def test_limit_that_is_known_is_kept_whatever_comes_back():
    limit = FixedLimit(2)
    assert limit.take(0, 3) == (2, math.inf)
    assert limit.look() == Look(gauges={"in_flight": 2})
    allowed = [Allowance(counts_tokens=False, remaining=0, reset_secs=60, limit=100)]
    for verdict in Verdict:
        assert limit.take(1, 3) == (0, math.inf)
        limit.finished(2, 0, verdict, retry_after=5, size=1, tokens=3, allowed=allowed)
        assert limit.take(2, 1) == (1, math.inf)
    assert limit.limit == limit.in_flight == 2
    assert (limit.is_throttled, limit.outage_began) == (False, None)


def most_in_a_minute(times, seconds):
    return max(bisect_left(times, begin + 60) - bisect_left(times, begin) for begin in range(seconds - 60))


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("rate", [60, 600])
def test_requests_per_minute_are_used_up_and_not_overrun(rate, processes):
    found = SimulatedEndpoint(processes=processes, requests_per_minute=rate).run(200)
    assert most_in_a_minute(found.accepted, 200) <= rate
    assert len(found.accepted) >= 0.98 * rate * 200 / 60


def test_processes_share_a_known_rate_fairly():
    found = SimulatedEndpoint(processes=2, requests_per_minute=600).run(100)
    assert min(found.by_client) >= 0.4 * len(found.accepted)


@pytest.mark.parametrize("processes", [1, 2])
def test_tokens_per_minute_are_used_up_and_not_overrun(processes):
    found = SimulatedEndpoint(processes=processes, tokens_per_minute=6000, tokens=lambda rng: rng.randrange(5, 16)).run(
        300
    )
    assert 0.95 * 600 <= most_in_a_minute(found.accepted, 300) <= 1.05 * 600
    assert found.rate(0, 300) == pytest.approx(10, rel=0.05)


def test_request_that_was_not_billed_is_given_back():
    budget = MinuteBudget(Board(0.0), None, 6000)
    budget.started(0.0)
    budget.finished(100)
    budget.started(10.0)
    assert budget.wait(10.0) > 1.5
    budget.finished(0)
    assert budget.wait(10.0) == pytest.approx(1, rel=0.05)


def test_mean_number_of_tokens_is_known_to_other_processes():
    memory = Memory()
    one, other = (MinuteBudget(Board(0.0, memory), None, 6000) for _ in range(2))
    one.started(0.0)
    one.finished(100)
    other.started(10.0)
    assert other.wait(10.0) == pytest.approx(1, rel=0.05)
