"""``--prometheus``: the figures of a run for Prometheus, on a port while it goes on, or in a file at its end."""

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


TO_FILE = ("--prometheus", "run.prom")


@pytest.mark.parametrize(
    ("more", "variables"),
    [
        (("--workers", "2", *TO_FILE), {}),
        (("--isolate", *TO_FILE), {}),
        (("--workers", "auto"), {"HEADRACE_PROMETHEUS": "run.prom"}),
    ],
    ids=["workers", "isolated", "variable"],
)
def test_each_row_is_counted_once(arguments, command, folder, more, variables):
    """By Prometheus's client and by OpenTelemetry, whichever process has predicted it."""
    with collecting() as collector:
        process = command(*arguments, *more, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **variables)
        assert "Prometheus" not in finished(process)
    text = (folder.path / "run.prom").read_text()
    assert total(text, "headrace_examples_total") == ROWS == collector.total("headrace.examples")
    assert total(text, "headrace_batch_size_sum") == ROWS == collector.total("headrace.batch.size")
    assert total(text, "headrace_model_load_duration_seconds_count") >= 1
    assert total(text, "headrace_phase_time_seconds_total", headrace_phase="loading") >= 0
    assert total(text, "headrace_sampled_time_seconds_total") > 0
    assert "process_cpu_seconds_total" not in text, "node_exporter has one of its own"
    assert collector.trees()


def test_a_run_shows_its_figures_and_its_page_while_it_goes_on(folder, handlers, command, closed_port):
    folder.write("in.jsonl", [{"a": 1}, {"a": 2}])
    arguments = ("run", "in.jsonl", "--handler", f"{handlers}:Waiting", "--output", "p.jsonl", "--watch", "0")
    process = command(*arguments, "--prometheus", f"127.0.0.1:{closed_port}", stdin=subprocess.PIPE)

    def shown(address=f"http://127.0.0.1:{closed_port}/metrics"):
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read().decode()

    address = process.stderr.readline().removeprefix("watch at ").strip()
    assert process.stdout.readline() == "at work\n"
    assert "headrace run" in shown(address)
    assert wait_until(lambda: total(shown(), "headrace_sampled_time_seconds_total"))
    assert total(shown(), "headrace_model_load_duration_seconds_count") == 1
    assert total(shown(), "process_resident_memory_bytes") > 0
    process.stdin.close()
    process.stdin = None
    assert finished(process) == ""


def test_a_port_that_is_taken_is_an_error_where_it_was_asked_for(arguments, headrace, taken_port, monkeypatch):
    """Before anything is read; the variable is for workers, too, which it does not stop."""
    said = f"no figures at 127.0.0.1:{taken_port}: Address already in use."
    result = headrace(*arguments, "--prometheus", f"127.0.0.1:{taken_port}")
    assert (result.code, result.error) == (2, f"--prometheus: {said}")
    monkeypatch.setenv("HEADRACE_PROMETHEUS", f"127.0.0.1:{taken_port}")
    result = headrace(*arguments)
    assert (result.code, said in result.err) == (0, True)


def test_processes_with_one_port_show_the_figures_of_all(arguments, command, folder, taken_port):
    """One has the port; what the others do is in its answer."""
    folder.path.joinpath("figures").mkdir()
    variables = {"PROMETHEUS_MULTIPROC_DIR": "figures", "HEADRACE_PROMETHEUS": f"127.0.0.1:{taken_port}"}
    assert "no figures" not in finished(command(*arguments, **variables))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder.path / "figures"))
    assert registry.get_sample_value("headrace_batch_size_sum", {"headrace_model": ""}) == ROWS


def test_a_folder_of_several_processes_that_is_not_there_is_an_error(arguments, headrace, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "no/folder")
    for where in ("run.prom", "127.0.0.1:0"):
        result = headrace(*arguments, "--prometheus", where)
        assert result.code == 2
        assert result.error.startswith("PROMETHEUS_MULTIPROC_DIR names no folder: 'no/folder'")
