"""Killed runs resume where they were, and end as if nothing had happened."""

import gzip
import json
import os
import random
import shutil
import signal
from datetime import date
from decimal import Decimal

import pytest

COUNT = 600
ARGUMENTS = ("--handler=logged:Logged", "--max-batch-size=4", "--min-batch-size=4", "--keep=n,day,price", "--resume")
BEAM = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


@pytest.fixture
def work(logged, monkeypatch):
    """Two files with broken lines; of their rows, also as Parquet and CSV, some do not fit into columns."""
    monkeypatch.setenv("PAUSE", "0")
    monkeypatch.setenv("BAD_OF", "13")
    rows = [
        {"n": n, "x": None if n % 31 == 5 else n / 8, "day": date(2024, 2, 1 + n % 29), "price": Decimal(n % 29) / 8}
        for n in range(COUNT)
    ]
    for name, some in (("a", rows[: COUNT // 2]), ("b", rows[COUNT // 2 :])):
        lines = [json.dumps(row, default=str) if row["n"] % 50 != 49 else f"broken {row['n']}" for row in some]
        logged.write(f"{name}.jsonl", "\n".join(lines))
    logged.write("a.parquet", rows[: COUNT // 2])
    lines = [f"{row['n']},{row['x'] or ''}" if row["n"] % 50 != 49 else f"broken {row['n']} ,," for row in some]
    logged.write("b.csv", "\n".join(["n,x", *lines]))
    logged.write("b.parquet", rows[COUNT // 2 :])
    return logged


@pytest.fixture
def undisturbed(work, headrace, request):
    """The arguments of a run, and its predictions and dead letters without ``--resume``."""
    handler, output, *inputs = getattr(request, "param", ("Logged", "p.jsonl", "[ab].jsonl"))
    arguments = ("run", *inputs, *ARGUMENTS, "--columns=n,x", f"--handler=logged:{handler}", "--output")
    assert headrace(*filter("--resume".__ne__, arguments), f"expected/{output}").code == 0
    found = [(work.path / "expected" / name).read_bytes() for name in (output, "p.dead-letters.jsonl")]
    shutil.rmtree(work.path / "expected")
    os.remove(work.path / "log")
    return (*arguments, output), found


@pytest.fixture
def runs(resumable):
    return resumable(COUNT // 2)


def letters_of(content):
    """Dead letters without attempts and frames: those depend on the rows left for the batch, and on where it ran."""
    return [{**json.loads(line), "attempts": 0, "traceback": ""} for line in content.splitlines()]


def in_input_order(letters):
    def number(letter):
        row = letter["row"]
        return row["n"] if "n" in row else int(row["line"].split()[1])

    return sorted(letters, key=number)


@pytest.mark.large
@pytest.mark.parametrize(
    ("undisturbed", "places"),
    [
        (("Logged", "p.jsonl", "[ab].jsonl"), ((), ("--isolate",))),
        (("InColumns", "p.parquet", "a.parquet", "b.csv"), (("--isolate",), BEAM)),
        (("Logged", "p.parquet", "[ab].parquet"), (("--workers=2",),)),
    ],
    ids=["rows", "columns", "types"],
    indirect=["undisturbed"],
)
def test_a_run_killed_repeatedly_resumes(work, undisturbed, headrace, command, runs, places):
    """No row is predicted twice whose result was durable, none is missing, and the bytes are the same."""
    arguments, expected = undisturbed
    before, output = work.names(), arguments[-1]
    done = set()
    for place in places:
        logged = len(runs.log())
        process = command(*arguments, *place, PAUSE="0.04")
        now = runs.kill(process, output, len(done) + random.randrange(1, 150))
        assert done < now
        assert not done & set(runs.log()[logged:])
        done = now
    logged = len(runs.log())
    last = headrace(*arguments)
    assert (last.code, last.err) == (0, "")
    assert last.summary["rows"] == str(COUNT)
    assert int(last.summary["done before"]) >= len(done)  # a worker may have outlived its run
    assert not done & set(runs.log()[logged:])
    assert (work.path / output).read_bytes() == expected[0]
    letters = letters_of((work.path / "p.dead-letters.jsonl").read_bytes())
    assert in_input_order(letters) == in_input_order(letters_of(expected[1]))
    assert work.names() == sorted([*before, "log", "p.dead-letters.jsonl", output])


def test_a_run_killed_while_publishing_its_files_resumes(work, undisturbed, headrace, command, runs):
    """Dead letters are there already, predictions are not."""
    arguments, expected = undisturbed
    process = command(*arguments, DIE_BEFORE_MOVE="2", PAUSE="0")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (work.path / "p.dead-letters.jsonl").exists()
    assert not (work.path / "p.jsonl").exists()
    logged = len(runs.log())
    last = headrace(*arguments)
    assert (last.code, last.summary["done before"]) == (0, str(COUNT))
    assert "rows/s" not in last.out
    assert len(runs.log()) == logged
    assert (work.path / "p.jsonl").read_bytes() == expected[0]


def test_a_run_goes_on_only_unchanged(work, undisturbed, headrace):
    arguments, expected = undisturbed
    assert headrace(*arguments, "--threshold=0").code == 3
    changed = {
        "--handler-arg times": [*arguments, "--handler-arg", "times=2"],
        "--columns": [one.replace("=n,x", "=n") for one in arguments],
        "the files, the file": [*arguments, "logged.py", "--format=jsonl"],
    }
    for what, line in changed.items():
        result = headrace(*line)
        assert result.code == 2
        assert f"{COUNT} rows of an earlier run are kept for" in result.error
        assert f"these have changed since: {what}" in result.error
    times = os.stat("a.jsonl")
    os.utime("a.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))
    assert f"changed since: the file {work.path / 'a.jsonl'}. Put" in headrace(*arguments).error
    os.utime("a.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    last = headrace(*arguments, "--max-batch-size=64", "--timeout=60")
    assert (last.code, last.summary["done before"]) == (0, str(COUNT))
    assert (work.path / "p.jsonl").read_bytes() == expected[0]


def test_a_run_that_fails_keeps_what_it_has_done(work, headrace):
    lines = [json.dumps({"n": n, "day": os.urandom(3000).hex(), "price": 1}) for n in range(1000)]
    whole = gzip.compress("\n".join(lines).encode())
    (work.path / "c.jsonl.gz").write_bytes(whole[:-1000])
    arguments = ("run", "c.jsonl.gz", *ARGUMENTS, "--output", "p.jsonl")
    failed = headrace(*arguments)
    assert failed.code == 1
    assert "rows are done and kept; the same command goes on from there.)" in failed.error
    assert "(0 rows" not in failed.error
    assert not (work.path / "p.jsonl").exists()


def test_a_run_without_progress_keeps_nothing(work, headrace, handlers):
    assert headrace("run", "[ab].jsonl", "--handler", f"{handlers}:fails", "--output", "p.jsonl", "--resume").code == 2
    assert not [name for name in work.names() if "headrace-" in name]
