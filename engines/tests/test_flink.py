"""A Flink cluster, and Headrace on it: every result is right, whatever is killed, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import digits_on_flink
import flink
import network_on_flink
from job import look_after, run


def test_a_task_manager_that_is_killed_costs_no_row_and_leaves_nothing(cluster, words, tmp_path):
    """First in this file: after other tests it would wait for their models, too."""
    words.linger = 10  # it is waited for; how often the model is loaded is asked elsewhere
    report = run(cluster, digits_on_flink.make("killed", tmp_path, words), kill="tm2", workers=1)
    assert report.problems == []
    look_after(cluster, report, words.linger + 300)
    assert list(report.left.values())[-1] == 0


def test_digits_are_predicted_right_and_each_model_is_loaded_once(cluster, words, tmp_path):
    report = run(cluster, digits_on_flink.make("keyed, timeout", tmp_path, words))
    assert report.problems == []
    assert report.loads == 2, str(report)
    assert len([process for process in report.processes if process.setups]) > 4  # they come and go


def test_a_network_predicts_right_and_is_loaded_once(cluster, words, tmp_path):
    report = run(cluster, network_on_flink.make("plain", tmp_path, words), workers=1)
    assert report.problems == []
    assert report.loads == 1, str(report)


def test_starting_the_cluster_twice_changes_nothing(cluster):
    assert flink.up(cluster.name) == replace(cluster, pids=flink.Cluster.read(cluster.name).pids)


def test_two_machines_have_a_manager_and_a_copy_each_whatever_is_killed(two_machines, words, tmp_path):
    report = run(two_machines, digits_on_flink.make("plain", tmp_path, words), kill="tm2", workers=1)
    assert report.problems == []
    assert sorted(process.task_manager for process in report.processes if process.loads) == ["tm1", "tm2"], str(report)
    assert report.loads == 2, str(report)
    for task_manager in flink.TASK_MANAGERS:
        (manager,) = read_by_doctor(two_machines, task_manager)["managers"]
        assert all(model["state"] == "ready" and model["mapped"] for model in manager["models"])
        network = os.stat(f"/proc/{manager['process']['process']}/ns/net")
        assert network.st_ino == os.stat(f"/run/netns/{two_machines.namespace(task_manager)}").st_ino


def test_machines_without_their_own_networks_are_recreated(two_machines):
    subprocess.run(["ip", "netns", "delete", two_machines.namespace("tm2")], check=True)
    again = flink.up(two_machines.name, machines=2)
    assert again.pids.keys() == two_machines.pids.keys()
    assert not again.pids.items() & two_machines.pids.items()
    assert len(again.running()) == len(again.pids)


def read_by_doctor(cluster, task_manager):
    """The output of ``headrace doctor`` on a task manager's machine."""
    variables = {**os.environ, "HEADRACE_RUNTIME_DIR": cluster.runtime_directory(task_manager)}
    command = [
        sys.executable,
        "-c",
        "import sys; from headrace.cli.main import main; sys.exit(main())",
        "doctor",
        "--json",
    ]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)
