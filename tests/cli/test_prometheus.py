"""``--prometheus``: the figures of a run for Prometheus, on a port while it goes on, or in a file at its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from otlp_collector import collecting
from waiting import wait_until

ROWS = 60


def total(text, name, **labels):
    """The sum of samples of that name with these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def arguments(folder, handlers):
    folder.write("in.csv", "a\n" + "".join(f"{number}\n" for number in range(ROWS)))
    return ("run", "in.csv", "--handler", f"{handlers}:Add", "--output", "p.jsonl", "--max-batch-size", "4")


def finished(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return err


@pytest.mark.parametrize("more", [(), ("--workers", "2"), ("--workers", "auto"), ("--isolate",)], ids="-".join)
def test_each_row_is_counted_once(arguments, command, folder, more):
    """By Prometheus's client and by OpenTelemetry, whichever process has predicted it."""
    with collecting() as collector:
        process = command(*arguments, *more, "--prometheus", "run.prom", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        assert "Prometheus" not in finished(process)
    text = (folder.path / "run.prom").read_text()
    assert total(text, "headrace_examples_total") == ROWS == collector.total("headrace.examples")
    assert total(text, "headrace_batch_size_sum") == ROWS == collector.total("headrace.batch.size")
    assert total(text, "headrace_model_load_duration_seconds_count") >= 1
    assert total(text, "headrace_phase_time_seconds_total", headrace_phase="loading") >= 0
    assert total(text, "headrace_sampled_time_seconds_total") > 0
    assert "process_cpu_seconds_total" not in text, "node_exporter has one of its own"
    assert collector.trees()


def test_a_run_shows_its_figures_while_it_goes_on(folder, handlers, command, closed_port):
    folder.write("in.jsonl", [{"a": 1}, {"a": 2}])
    arguments = ("run", "in.jsonl", "--handler", f"{handlers}:Waiting", "--output", "p.jsonl")
    process = command(*arguments, "--prometheus", f"127.0.0.1:{closed_port}", stdin=subprocess.PIPE)

    def shown():
        with urllib.request.urlopen(f"http://127.0.0.1:{closed_port}/metrics", timeout=60) as answer:
            return answer.read().decode()

    assert process.stdout.readline() == "at work\n"
    assert wait_until(lambda: total(shown(), "headrace_sampled_time_seconds_total"))
    assert total(shown(), "headrace_model_load_duration_seconds_count") == 1
    assert total(shown(), "process_resident_memory_bytes") > 0
    process.stdin.close()
    process.stdin = None
    finished(process)


def test_a_run_that_is_interrupted_while_its_model_is_stuck_leaves_its_figures(folder, handlers, command):
    folder.write("in.jsonl", [{"a": 1}])
    arguments = ("run", "in.jsonl", "--handler", f"{handlers}:Waiting", "--output", "p.jsonl")
    process = command(*arguments, "--prometheus", "run.prom", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert total((folder.path / "run.prom").read_text(), "headrace_model_load_duration_seconds_count") == 1


def test_a_port_that_is_taken_is_an_error_before_anything_is_read(arguments, headrace, taken_port):
    result = headrace(*arguments, "--prometheus", f"127.0.0.1:{taken_port}")
    assert result.code == 2
    assert result.error == f"--prometheus: no figures at 127.0.0.1:{taken_port}: Address already in use."


@pytest.mark.parametrize("where", ["run.txt", "no/folder/run.prom", "port", "127.0.0.1:99999"])
def test_a_place_that_is_none_is_an_error(arguments, headrace, where):
    result = headrace(*arguments, "--prometheus", where)
    assert result.code == 2
    assert where in result.error


def test_the_variable_does_the_same_and_a_port_that_is_taken_stops_no_worker(arguments, command, folder, taken_port):
    finished(command(*arguments, HEADRACE_PROMETHEUS="run.prom"))
    assert total((folder.path / "run.prom").read_text(), "headrace_examples_total") == ROWS
    assert "no figures at" in finished(command(*arguments, HEADRACE_PROMETHEUS=f"127.0.0.1:{taken_port}"))


def test_processes_with_one_port_show_the_figures_of_all(arguments, command, folder, taken_port):
    """One has the port; what the others do is in its answer."""
    folder.path.joinpath("figures").mkdir()
    variables = {"PROMETHEUS_MULTIPROC_DIR": "figures", "HEADRACE_PROMETHEUS": f"127.0.0.1:{taken_port}"}
    assert "no figures" not in finished(command(*arguments, **variables))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder.path / "figures"))
    assert registry.get_sample_value("headrace_batch_size_sum", {"headrace_model": ""}) == ROWS


@pytest.mark.parametrize("where", ["run.prom", "127.0.0.1:0"])
def test_a_folder_of_several_processes_that_is_not_there_is_an_error_before_anything_is_read(arguments, command, where):
    process = command(*arguments, "--prometheus", where, PROMETHEUS_MULTIPROC_DIR="no/folder")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert error.startswith("error: PROMETHEUS_MULTIPROC_DIR names no folder: 'no/folder'")
    assert error.count("\n") == 1
