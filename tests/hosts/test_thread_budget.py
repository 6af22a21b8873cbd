"""Processes that share the machine's cores compute with as many threads as their share."""

from __future__ import annotations

import os

import pytest
import torch

from headrace.hosts import environment
from headrace.hosts.environment import ProcessEnvironment, ThreadBudget, count_computing
from headrace.ipc.segment import Segment

pytestmark = pytest.mark.large


@pytest.fixture
def six_threads(monkeypatch):
    """For torch, on a machine of eight cores."""
    monkeypatch.setattr(environment, "allowed_cores", lambda: 8)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


def test_a_budget_follows_the_number_of_processes(six_threads):
    page = Segment.create(0, 8)
    budget = ThreadBudget(Segment.received(os.dup(page.file)))
    seen = []
    for processes in (1, 2, 4, 100, 2, 1):
        count_computing(page, processes)
        budget.keep()
        seen.append(torch.get_num_threads())
    assert seen == [6, 4, 2, 1, 4, 6]


def test_a_released_budget_leaves_no_limit(six_threads):
    page = Segment.create(0, 8)
    count_computing(page, 4)
    budget = ThreadBudget(page)
    for _ in range(2):
        budget.keep()
        assert torch.get_num_threads() == 2
        budget.release()
        assert torch.get_num_threads() == 6


def test_a_budget_does_not_add_threads(six_threads):
    torch.set_num_threads(2)
    page = Segment.create(0, 8)
    count_computing(page, 2)
    ThreadBudget(page).keep()
    assert torch.get_num_threads() == 2


def test_thread_settings_of_the_environment_stay():
    here = ProcessEnvironment("", [], "/", {"OMP_NUM_THREADS": "7"}, 0)
    assert here.with_threads(2).variables["OMP_NUM_THREADS"] == "7"
    assert here.with_threads(2).threads is None
    there = ProcessEnvironment("", [], "/", {}, 0).with_threads(2)
    assert (there.variables["OMP_NUM_THREADS"], there.threads) == ("2", 2)
