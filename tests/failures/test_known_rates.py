"""Rates that are known: no minute has more than the user says, and headers are read as the providers write them."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from headrace.failures.endpoint_board import Board, Memory
from headrace.failures.known_rates import Allowance, MinuteBudget, allowances
from quotas import SimulatedEndpoint


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


NOW = 1_700_000_000.0


def openai(kind, remaining, reset, limit="60"):
    return {
        f"x-ratelimit-limit-{kind}": limit,
        f"x-ratelimit-remaining-{kind}": remaining,
        f"x-ratelimit-reset-{kind}": reset,
    }


def anthropic(kind, remaining, reset):
    names = {"limit": "50", "remaining": remaining, "reset": reset}
    return {f"anthropic-ratelimit-{kind}-{name}": value for name, value in names.items()}


@pytest.mark.parametrize(
    ("headers", "allowance"),
    [
        (openai("requests", "59", "1s"), Allowance(False, 59, 1.0, 60)),
        (openai("requests", "0", "6m0s"), Allowance(False, 0, 360.0, 60)),
        (openai("tokens", "149984", "12ms", "150000"), Allowance(True, 149984, 0.012, 150000)),
        (openai("tokens", "5", "1h2m3.5s"), Allowance(True, 5, 3723.5, 60)),
        (openai("requests", "5", "7.66"), Allowance(False, 5, 7.66, 60)),
        (anthropic("requests", "0", "2023-11-14T22:13:30Z"), Allowance(False, 0, 10.0, 50)),
        (anthropic("input-tokens", "7", "2023-11-14T22:13:30+00:00"), Allowance(True, 7, 10.0, 50)),
        (anthropic("tokens", "7", "2023-11-14T22:13:10Z"), Allowance(True, 7, 0.0, 50)),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "1700000005"}, Allowance(False, 3, 5.0, None)),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "30"}, Allowance(False, 0, 30.0, None)),
    ],
)
def test_headers_are_understood(headers, allowance):
    assert allowances(headers, lambda: NOW) == [allowance]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/html"},
        openai("requests", "many", "1s"),
        openai("requests", "-1", "1s"),
        openai("requests", "inf", "1s"),
        openai("requests", "5", "soon"),
        openai("requests", "5", ""),
        openai("requests", "5", "1s and more"),
        {"x-ratelimit-remaining-requests": "5"},
    ],
    ids=repr,
)
def test_headers_that_are_not_understood_say_nothing(headers):
    assert allowances(headers, lambda: NOW) == []


def test_several_limits_are_all_found():
    assert len(allowances(openai("requests", "1", "1s") | openai("tokens", "2", "2s"), lambda: NOW)) == 2


@pytest.mark.parametrize(
    ("allowance", "needed", "wait"),
    [
        (Allowance(False, 1, 60.0, 60), 1, 0),
        (Allowance(False, 0, 60.0, 60), 1, 1),
        (Allowance(True, 500, 60.0, 60500), 1500, 1),
        (Allowance(False, 0, 30.0, None), 1, 30),
        (Allowance(True, 0, 30.0, 50), 1500, 30),
        (Allowance(False, 0, 30.0, 0), 1, 30),
    ],
)
def test_wait_is_as_long_as_the_quota_takes_to_be_refilled(allowance, needed, wait):
    assert allowance.wait(needed) == pytest.approx(wait)
