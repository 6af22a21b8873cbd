"""Copies are dealt out to GPUs in turn."""

from __future__ import annotations

import pytest

from headrace.hosts.environment import gpu_of, visible_gpus


@pytest.fixture
def driver(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "3, GPU-5f,"}, ["3", "GPU-5f"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,3"}, ["2"]),
    ],
)
def test_visible_gpus_are_read_from_the_environment(environment, gpus, driver):
    assert visible_gpus(environment, driver) == gpus


def test_gpus_without_a_driver_are_none(tmp_path):
    assert visible_gpus({}, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("copies", "shares"), [(2, ["0,1", "2,3"]), (3, ["0", "1", "2"]), (4, ["0", "1", "2", "3"]), (5, [*"01230"])]
)
def test_gpus_are_shared_out_among_copies(copies, shares):
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert [gpu_of(number, copies, environment)["CUDA_VISIBLE_DEVICES"] for number in range(copies)] == shares


def test_gpus_are_assigned_to_copies_in_turn(driver):
    assert [gpu_of(number, 3, {}, driver) for number in range(3)] == [
        {"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("0", "1", "0")
    ]


@pytest.mark.parametrize(("copies", "environment"), [(1, {}), (2, {"CUDA_VISIBLE_DEVICES": "1"})])
def test_copies_without_a_choice_of_gpus_keep_the_environment(copies, environment, driver):
    assert gpu_of(0, copies, environment, driver) == {}
