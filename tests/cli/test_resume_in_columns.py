"""Killed runs in columns resume where they were, and end as if nothing had happened."""

import gzip
import json
import random
import sys

import pyarrow
import pyarrow.parquet
import pytest

LOGGED = '''
import os
import time

import numpy

import headrace
from headrace.jobs import durable

durable._COMMIT_SECONDS = 0.05


class Logged(headrace.ModelHandler):
    """Notes in a file which rows it predicts; 97, 194, ... are poison."""

    def load_model(self):
        return "log"

    def columns_equal_rows(self):
        return True

    def example_from_row(self, row):
        return float(row["n"]), float(row["x"])

    def run_inference(self, batch, path, inference_args=None):
        return self.run_columns(dict(zip("nx", map(numpy.array, zip(*batch)))), path).tolist()

    def run_columns(self, columns, path, inference_args=None):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        numbers = columns["n"]
        if (numbers % 97 == 0).any():
            raise ValueError("poison")
        with open(path, "a") as log:
            log.write("".join(f"{n:.0f}\\n" for n in numbers))
        return numbers + columns["x"]
'''
COUNT = 12_000
BAD = sum(n % 97 == 0 or n % 301 == 5 or n == COUNT // 2 + 1000 for n in range(COUNT))
INPUTS = ("a.parquet", "b.csv")
ARGUMENTS = ("run", *INPUTS, "--handler=logged:Logged", "--columns=n,x", "--max-batch-size=20", "--keep=n,word")


@pytest.fixture
def work(folder, monkeypatch):
    """A Parquet file, and a CSV file with broken lines, of rows of which some are not fit for columns."""
    folder.write("logged.py", LOGGED)
    monkeypatch.syspath_prepend(str(folder.path))
    half = COUNT // 2
    table = {
        "n": range(half),
        "x": [None if n % 301 == 5 else n / 8 for n in range(half)],
        "word": [f"w{n % 7}" if n % 5 else None for n in range(half)],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), folder.path / "a.parquet", row_group_size=1000)
    lines = [f"{n},{'smudge' if n % 301 == 5 else n / 8},é{n}" for n in range(half, COUNT)]
    lines[1000] += ",broken"
    folder.write("b.csv", "\n".join(["n,x,word", *lines]))
    yield folder
    sys.modules.pop("logged", None)


@pytest.fixture
def runs(resumable):
    return resumable(COUNT // 2)


def letters_of(path):
    """Dead letters without attempts and frames: those depend on the rows left for the batch, and on where it ran."""
    letters = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**letter, "attempts": 0, "traceback": ""} for letter in letters]


@pytest.mark.large
@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl.gz"])
def test_a_run_in_columns_killed_repeatedly_resumes(work, headrace, command, runs, name):
    """No row is predicted twice whose result was durable, none is missing, and the bytes are the same."""
    expected = headrace(*ARGUMENTS, "--output", f"whole/{name}", "--dead-letters=whole/q.jsonl")
    assert (expected.summary["predictions"], expected.summary["dead letters"]) == (f"{COUNT - BAD:,}", f"{BAD:,}")
    arguments = (*ARGUMENTS, "--output", name, "--dead-letters=q.jsonl", "--resume")
    done = set()
    workers = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    for others in (("--isolate", "--max-batch-size=30"), workers):
        logged = len(runs.log())
        process = command(*arguments, *others, PAUSE="0.005")
        now = runs.kill(process, name, len(done) + random.randrange(1, COUNT // 5))
        assert done < now
        assert [path for path in work.names() if path.endswith(".predictions")]
        assert not done & set(runs.log()[logged:])
        done = now
    logged = len(runs.log())
    last = headrace(*arguments, "--max-batch-size=1000")
    assert (last.code, last.err) == (0, "")
    assert last.summary["rows"] == f"{COUNT:,}"
    assert int(last.summary["done before"].replace(",", "")) >= len(done)  # a worker may have outlived its run
    assert last.summary["predictions"] == expected.summary["predictions"]
    assert last.summary["dead letters"] == expected.summary["dead letters"]
    assert not done & set(runs.log()[logged:])
    read = gzip.decompress if name.endswith(".gz") else bytes
    assert read((work.path / name).read_bytes()) == read((work.path / "whole" / name).read_bytes())
    by_row = sorted(letters_of(work.path / "whole" / "q.jsonl"), key=json.dumps)
    assert sorted(letters_of(work.path / "q.jsonl"), key=json.dumps) == by_row
    assert not [path for path in work.names() if "headrace-" in path]
