"""A Flink cluster, and Headrace on it: every result is right, whatever is killed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import digits_on_flink
import flink
import network_on_flink
import pytest
from job import look_after, run
from members import members


@pytest.mark.parametrize("kind", ["timeout", "keyed"])
def test_digits_come_out_right_and_each_model_is_loaded_once(cluster, words, tmp_path, kind):
    report = run(cluster, digits_on_flink.make(kind, tmp_path, words))
    assert report.problems == []
    assert report.loads == (2 if kind == "keyed" else 1), str(report)
    assert len([process for process in report.processes if process.setups]) > 4  # they come and go


def test_a_network_comes_out_right_and_is_loaded_once(cluster, words, tmp_path):
    report = run(cluster, network_on_flink.make("plain", tmp_path, words))
    assert report.problems == []
    assert report.loads == 1, str(report)


def test_a_task_manager_that_is_killed_costs_no_row_and_leaves_nothing(cluster, words, tmp_path):
    report = run(cluster, digits_on_flink.make("killed", tmp_path, words), kill="tm2")
    assert report.problems == []
    assert report.loads == 1, str(report)
    look_after(cluster, report, words.linger + 30)
    assert list(report.left.values())[-1] == 0


def test_starting_twice_changes_nothing(cluster):
    assert flink.up(cluster.name) == replace(cluster, pids=flink.Cluster.read(cluster.name).pids)


def test_two_machines_have_a_copy_each(tmp_path, words):
    cluster = flink.up("two", machines=2)
    try:
        report = run(cluster, digits_on_flink.make("plain", tmp_path, words))
        assert report.problems == []
        assert sorted(process.task_manager for process in report.processes if process.loads) == ["tm1", "tm2"]
    finally:
        for pid in cluster.pids.values():  # a cluster that has crashed is taken down, too
            os.kill(pid, signal.SIGKILL)
        flink.down(cluster.name)
    assert members(cluster.mark) == []
    assert not Path(cluster.scratch).exists()
