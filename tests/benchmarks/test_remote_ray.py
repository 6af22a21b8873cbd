"""Ray Data is a side of the benchmark of remote models where it is installed, and left out where it is not."""

import subprocess
import sys
import urllib.request

import pytest


@pytest.fixture
def remote_ray(benchmark_module):
    return benchmark_module("workloads.remote_ray")


@pytest.fixture
def make_python(tmp_path, monkeypatch):
    """Makes a Python of Ray's environment that notes its arguments and prints an answer."""

    def make(answer):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\necho noise\necho '{answer}'\n")
        python.chmod(0o755)
        monkeypatch.setenv("HEADRACE_BENCHMARK_RAY", str(python))
        return tmp_path / "arguments"

    return make


def test_ray_is_left_out_where_it_is_not_installed(remote_ray, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_BENCHMARK_RAY", str(tmp_path / "python"))

    assert remote_ray.sides(1000) == {}
    assert capsys.readouterr().err == (f"without ray, for there is no {tmp_path}/python; `make ray` makes it\n")


@pytest.mark.parametrize(("quota", "told"), [(1000, "13 1000"), (200, "3 200")])
def test_ray_is_asked_in_three_ways(remote_ray, make_python, quota, told):
    arguments = make_python('{"right": 8, "error": ""}')
    sides = remote_ray.sides(quota)
    given = {}
    for name, run in sides.items():
        assert run(4711, 10) == 8
        program, _, rest = arguments.read_text().partition(" ")
        assert program.endswith("benchmarks/elsewhere/with_ray.py")
        given[name] = rest.strip()

    assert given == {
        "Ray Data": "4711 10 1",
        "Ray Data, 13 workers": "4711 10 13",
        "Ray Data, told the quota": f"4711 10 {told}",
    }


def test_ray_that_fails_is_counted_and_heard(remote_ray, make_python, capsys):
    make_python('{"right": 0, "error": "RuntimeError: Reached maximum retries"}')

    assert remote_ray.sides(200)["Ray Data"](4711, 10) == 0
    assert capsys.readouterr().err == "Ray Data, workers: 1; RuntimeError: Reached maximum retries\n"


def test_quota_server_says_that_it_answers_in_json(remote_ray):
    """Else Ray's client refuses to read the answer."""
    folder = remote_ray.__file__.rpartition("/workloads/")[0]
    command = [sys.executable, "-m", "elsewhere.quota_server", "1000"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{int(server.stdout.readline())}", data=b"[21]")
            with urllib.request.urlopen(request) as answer:
                assert answer.headers["Content-Type"] == "application/json"
                assert answer.read() == b"[42]"
        finally:
            server.kill()
