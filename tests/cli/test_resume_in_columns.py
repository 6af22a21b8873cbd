"""Killed runs in columns resume where they were, and end as if nothing had happened."""

import gzip
import json
import random

import pyarrow
import pyarrow.parquet
import pytest

COUNT = 12_000
BAD = sum(n % 97 == 7 or n % 301 == 5 or n == COUNT // 2 + 1000 for n in range(COUNT))
INPUTS = ("a.parquet", "b.csv")
ARGUMENTS = ("run", *INPUTS, "--handler=logged:InColumns", "--columns=n,x", "--max-batch-size=20", "--keep=n,word")


@pytest.fixture
def work(logged, monkeypatch):
    """A Parquet file, and a CSV file with broken lines, of rows of which some are not fit for columns."""
    monkeypatch.setenv("BAD_OF", "97")
    half = COUNT // 2
    table = {
        "n": range(half),
        "x": [None if n % 301 == 5 else n / 8 for n in range(half)],
        "word": [f"w{n % 7}" if n % 5 else None for n in range(half)],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), logged.path / "a.parquet", row_group_size=1000)
    lines = [f"{n},{'smudge' if n % 301 == 5 else n / 8},é{n}" for n in range(half, COUNT)]
    lines[1000] += ",broken"
    logged.write("b.csv", "\n".join(["n,x,word", *lines]))
    return logged


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
