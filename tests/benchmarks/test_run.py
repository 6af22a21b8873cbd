"""The benchmark runs from the command line, end to end on real pipelines, and writes what it found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.large

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def test_quick_run_measures_tiny_and_timestamps(tmp_path):
    command = [sys.executable, RUN, "--quick", "--repeats", "1", "--only", "tiny", "timestamps", "--out", tmp_path]
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
