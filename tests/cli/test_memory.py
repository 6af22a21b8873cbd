"""Rows stream: ten times as many need no more memory; and no framework is loaded that the handler does not need."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.large

MEASURE = """
import resource, sys
from headrace.cli.main import main

for name in ("few.csv", "many.csv"):
    options = ["--columns", "n,m", "--types", "n=int", "--min-batch-size", "50", "--max-batch-size", "50"]
    options += ["--output", "p.jsonl"]
    assert main(["run", name, "--handler", sys.argv[1], *options]) == 0
    print(name, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
print("frameworks:", {"torch", "sklearn", "onnxruntime"} & set(sys.modules))
"""


def test_memory_does_not_grow_with_the_rows(folder, handlers):
    text = "x" * 2000
    for name, rows in (("few.csv", 4_000), ("many.csv", 40_000)):
        folder.write(name, "n,m,text\n" + (f"1,2,{text}\n" * 9 + f"smudge,2,{text}\n") * (rows // 10))
    size = (folder.path / "many.csv").stat().st_size
    arguments = [sys.executable, "-c", MEASURE, f"{handlers}:Add"]
    process = subprocess.run(arguments, cwd=folder.path, stdout=subprocess.PIPE, text=True, check=True)
    peaks = {name: int(peak) for name, peak in re.findall(r"^(\w+\.csv) (\d+)$", process.stdout, re.MULTILINE)}
    assert re.search("^predictions +36,000$", process.stdout, re.MULTILINE)
    assert "frameworks: set()\n" in process.stdout
    assert size > 80_000_000
    assert peaks["many.csv"] - peaks["few.csv"] < size / 4
