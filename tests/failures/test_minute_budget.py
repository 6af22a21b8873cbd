"""Requests and tokens a minute that the user knows: no minute has more, whatever the number of processes."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from headrace.failures.endpoint_board import Board, Memory
from headrace.failures.known_rates import MinuteBudget
from simulated_endpoint import Simulation


def most_in_a_minute(times, seconds):
    return max(bisect_left(times, begin + 60) - bisect_left(times, begin) for begin in range(seconds - 60))


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("rate", [60, 600])
def test_requests_per_minute_are_used_up_and_not_overrun(rate, processes):
    found = Simulation(processes=processes, requests_per_minute=rate).run(200)
    assert most_in_a_minute(found.accepted, 200) <= rate
    assert len(found.accepted) >= 0.98 * rate * 200 / 60


def test_processes_share_a_known_rate_fairly():
    found = Simulation(processes=2, requests_per_minute=600).run(100)
    assert min(found.by_client) >= 0.4 * len(found.accepted)


@pytest.mark.parametrize("processes", [1, 2])
def test_tokens_per_minute_are_used_up_and_not_overrun(processes):
    found = Simulation(processes=processes, tokens_per_minute=6000, tokens=lambda rng: rng.randrange(5, 16)).run(300)
    assert 0.95 * 600 <= most_in_a_minute(found.accepted, 300) <= 1.05 * 600
    assert found.rate(0, 300) == pytest.approx(10, rel=0.05)


def test_wait_is_zero_or_less_without_a_rate():
    assert MinuteBudget(Board(0.0), None, None).wait(5.0) <= 0


def test_request_that_takes_many_tokens_delays_the_next():
    budget = MinuteBudget(Board(0.0), None, 6000)
    budget.started(0.0)
    budget.finished(1000)
    assert budget.wait(0.0) == pytest.approx(10, rel=0.01)


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
