"""The workload with a quota has all sides in one table, and counts what each of them got right."""

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


def test_quick_run_has_every_side_in_one_table(tmp_path):
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable))
    python.chmod(0o755)
    command = [sys.executable, RUN, "--quick", "--repeats", "1", "--only", "remote", "--ray", "python"]
    done = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True, check=True, cwd=tmp_path)

    facts = {fact["requests"]: fact for fact in json.loads((tmp_path / "remote.json").read_text())["facts"]}
    assert {side.partition(", ")[2]: fact["rows answered"] for side, fact in facts.items()} == {
        "Headrace, async": "200 of 200",
        "Headrace, threads": "200 of 200",
        "Headrace, 2 processes": "200 of 200",
        "Headrace, 4 processes": "200 of 200",
        "Beam": "20 of 20",
        "Ray Data": "3 of 80",
        "Ray Data, 13 workers": "3 of 200",
        "Ray Data, told the quota": "3 of 200",
    }
    ((share, refused, right),) = facts["200/s, Ray Data"]["runs"]
    assert refused == 0
    assert right == 3
    assert 0 < share <= 3 / (4 * 0.05) / 200  # four requests, one after the other
    assert "Ray Data, workers: 13; RuntimeError: the rest is lost" in done.stderr
    assert done.stdout.count("Quota of 200/s, Headrace, async: ") == 2
