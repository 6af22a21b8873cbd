"""Copies are dealt out to GPUs in turn, and processes share the cores: each computes with its share of threads."""

from __future__ import annotations

import os

import pytest

from headrace.hosts import environment as module
from headrace.hosts.environment import ProcessEnvironment, ThreadBudget, count_computing, gpu_of, visible_gpus
from headrace.ipc.segment import Segment
from large import torch


@pytest.fixture
def driver(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_visible_gpus_are_read_from_the_environment_else_counted(driver):
    gpus = {"3, GPU-5f,": ["3", "GPU-5f"], "": [], "-1": [], "2,-1,3": ["2"]}
    assert {named: visible_gpus({"CUDA_VISIBLE_DEVICES": named}, driver) for named in gpus} == gpus
    assert visible_gpus({}, driver) == ["0", "1"]
    assert visible_gpus({}, driver / "none") == []


def test_copies_share_gpus_or_take_them_in_turn_and_keep_the_environment_without_a_choice(driver):
    shares = {2: ["0,1", "2,3"], 3: ["0", "1", "2"], 4: ["0", "1", "2", "3"], 5: [*"01230"]}
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    for copies, expected in shares.items():
        assert [gpu_of(n, copies, environment)["CUDA_VISIBLE_DEVICES"] for n in range(copies)] == expected
    assert [gpu_of(n, 3, {}, driver)["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["0", "1", "0"]
    assert gpu_of(0, 1, {}, driver) == gpu_of(0, 2, {"CUDA_VISIBLE_DEVICES": "1"}, driver) == {}


@pytest.fixture
def six_threads(monkeypatch):
    """For torch, on a machine of eight cores."""
    monkeypatch.setattr(module, "allowed_cores", lambda: 8)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


@pytest.mark.large
def test_a_budget_follows_the_number_of_processes_and_leaves_no_limit_when_it_is_released(six_threads):
    page = Segment.create(0, 8)
    budget = ThreadBudget(Segment.received(os.dup(page.file)))
    for processes, threads in ((1, 6), (2, 4), (4, 2), (100, 1), (2, 4), (1, 6), (4, 2)):
        count_computing(page, processes)
        budget.keep()
        assert torch.get_num_threads() == threads
    for _ in range(2):
        budget.release()
        assert torch.get_num_threads() == 6
        budget.keep()
        assert torch.get_num_threads() == 2
    budget.release()


@pytest.mark.large
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
