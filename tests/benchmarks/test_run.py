"""The benchmark runs from the command line, end to end on real pipelines, and writes what it found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.large

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"
STAND_IN = """#!{python}
import http.client, json, sys

_, _, port, count, *_ = sys.argv
connection = http.client.HTTPConnection("127.0.0.1", int(port))
for number in range(4):
    connection.request("POST", "/", json.dumps([number]))
    assert json.load(connection.getresponse()) == [2 * number]
print(json.dumps({{"right": 3, "error": "RuntimeError: the rest is lost"}}))
"""
"""In place of a Python with Ray."""


def test_quick_run_measures_each_workload(tmp_path):
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable))
    python.chmod(0o755)
    command = [sys.executable, RUN, "--quick", "--repeats", "1", "--only", "tiny", "timestamps", "remote"]
    command += ["--ray", "python", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    tiny = json.loads((tmp_path / "tiny.json").read_text())
    assert [case["name"] for case in tiny["cases"]] == ["adaptive batches", "batches of 1,000", "batches of 100"]
    for case in tiny["cases"]:
        assert case["rows"] == 2_000
        assert case["ratio_of_medians"] == case["median_of_ratios"] > 0
        assert {side: len(runs) for side, runs in case["runs"].items()} == {"Headrace": 1, "Beam": 1, "no-op": 1}
        assert 0 < case["runs"]["Headrace"][0]["bundle_seconds"] < case["runs"]["Headrace"][0]["seconds"]
    assert tiny["cases"][1]["runs"]["Headrace"][0]["batches"] == tiny["cases"][1]["runs"]["Beam"][0]["batches"] == 2
    assert {"CPU", "cores", "memory", "OS", "Python", "libraries", "date"} <= set(tiny["machine"])
    assert (tmp_path / "tiny.md").read_text().strip() in done.stdout

    facts = json.loads((tmp_path / "timestamps.json").read_text())["facts"]
    assert [fact["Headrace"] for fact in facts] == ["100 of 100", "100 of 100", "200 of 200"]
    assert [fact["Beam"] for fact in facts] == ["0 of 100", "0 of 100", "0 of 200"]

    facts = {fact["requests"]: fact for fact in json.loads((tmp_path / "remote.json").read_text())["facts"]}
    assert {side.partition(", ")[2]: fact["rows answered"] for side, fact in facts.items()} == {
        **{f"Headrace, {way}": "200 of 200" for way in ("async", "threads", "2 processes", "4 processes")},
        **{f"by hand, {most} at once": f"{count} of {count}" for most, count in ((8, 160), (32, 200), (128, 200))},
        "Beam": "20 of 20",
        "Ray Data": "3 of 80",
        **{f"Ray Data, {way}": "3 of 200" for way in ("13 workers", "told the quota")},
    }
    ((share, refused, right),) = facts["200/s, Ray Data"]["runs"]
    assert (refused, right) == (0, 3)
    assert 0 < share <= 3 / (4 * 0.05) / 200  # four requests, one after the other
    assert "Ray Data, workers: 13; RuntimeError: the rest is lost" in done.stderr
    assert done.stdout.count("Quota of 200/s, Headrace, async: ") == 2
