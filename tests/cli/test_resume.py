"""Killed runs resume where they were, and end as if nothing had happened."""

import gzip
import json
import os
import random
import shutil
import signal

import pyarrow
import pyarrow.parquet
import pytest

COUNT = 600
ARGUMENTS = ("--handler", "logged:Logged", "--max-batch-size=4", "--min-batch-size=4", "--keep=n", "--resume")


@pytest.fixture
def work(logged, monkeypatch):
    """Two files with broken lines."""
    monkeypatch.setenv("PAUSE", "0")
    monkeypatch.setenv("BAD_OF", "13")
    for name, start in (("a.jsonl", 0), ("b.jsonl", COUNT // 2)):
        lines = [json.dumps({"n": n}) if n % 50 != 49 else f"broken {n}" for n in range(start, start + COUNT // 2)]
        logged.write(name, "\n".join(lines))
    return logged


@pytest.fixture
def undisturbed(work, headrace):
    """The predictions and the dead letters without ``--resume``."""
    assert headrace("run", "[ab].jsonl", *ARGUMENTS[:-1], "--output", "expected/p.jsonl").code == 0
    found = [(work.path / "expected" / f"p{kind}.jsonl").read_bytes() for kind in ("", ".dead-letters")]
    shutil.rmtree(work.path / "expected")
    os.remove(work.path / "log")
    return found


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


def killed(command, runs, name, arguments, places, most, pause):
    """Kills a run for each of several options, at a random moment; returns what is durable then.

    No row is predicted twice whose result was durable.
    """
    done = set()
    for place in places:
        logged = len(runs.log())
        now = runs.kill(command(*arguments, *place, PAUSE=pause), name, len(done) + random.randrange(1, most))
        assert done < now
        assert not done & set(runs.log()[logged:])
        done = now
    return done, len(runs.log())


@pytest.mark.large
def test_a_run_killed_repeatedly_resumes(work, undisturbed, headrace, command, runs):
    """No row is missing, and the bytes are the same."""
    arguments = ("run", "[ab].jsonl", *ARGUMENTS, "--output", "p.jsonl")
    done, logged = killed(command, runs, "p.jsonl", arguments, [(), ("--isolate",)], 150, "0.01")
    last = headrace(*arguments)
    assert (last.code, last.err) == (0, "")
    assert last.summary["rows"] == str(COUNT)
    assert last.summary["done before"] == str(len(done))
    assert not done & set(runs.log()[logged:])
    assert (work.path / "p.jsonl").read_bytes() == undisturbed[0]
    letters = letters_of((work.path / "p.dead-letters.jsonl").read_bytes())
    assert letters == in_input_order(letters_of(undisturbed[1]))
    assert work.names() == ["a.jsonl", "b.jsonl", "log", "logged.py", "p.dead-letters.jsonl", "p.jsonl"]


OF_COLUMNS = 12_000
BAD = sum(n % 97 == 7 or n % 301 == 5 or n == OF_COLUMNS // 2 + 1000 for n in range(OF_COLUMNS))
IN_COLUMNS = ("--handler=logged:InColumns", "--columns=n,x", "--max-batch-size=20", "--keep=n,word")
WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


@pytest.fixture
def columns(logged, monkeypatch):
    """A Parquet file, and a CSV file with broken lines, of rows of which some are not fit for columns."""
    monkeypatch.setenv("BAD_OF", "97")
    half = OF_COLUMNS // 2
    table = {
        "n": range(half),
        "x": [None if n % 301 == 5 else n / 8 for n in range(half)],
        "word": [f"w{n % 7}" if n % 5 else None for n in range(half)],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), logged.path / "a.parquet", row_group_size=1000)
    lines = [f"{n},{'smudge' if n % 301 == 5 else n / 8},é{n}" for n in range(half, OF_COLUMNS)]
    lines[1000] += ",broken"
    logged.write("b.csv", "\n".join(["n,x,word", *lines]))
    return logged


@pytest.mark.large
@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl.gz"])
def test_a_run_in_columns_killed_repeatedly_resumes(columns, headrace, command, resumable, name):
    runs, run = resumable(OF_COLUMNS // 2), ("run", "a.parquet", "b.csv", *IN_COLUMNS, "--output")
    whole = headrace(*run, f"whole/{name}", "--dead-letters=whole/q.jsonl")
    assert (whole.summary["predictions"], whole.summary["dead letters"]) == (f"{OF_COLUMNS - BAD:,}", f"{BAD:,}")
    arguments = (*run, name, "--dead-letters=q.jsonl", "--resume")
    places = [("--isolate", "--max-batch-size=30"), WORKERS]
    done, logged = killed(command, runs, name, arguments, places, OF_COLUMNS // 5, "0.005")
    assert [path for path in columns.names() if path.endswith(".predictions")]
    last = headrace(*arguments, "--max-batch-size=1000")
    assert (last.code, last.err) == (0, "")
    assert int(last.summary["done before"].replace(",", "")) >= len(done)  # a worker may have outlived its run
    for figure in ("rows", "predictions", "dead letters"):
        assert last.summary[figure] == whole.summary[figure]
    assert not done & set(runs.log()[logged:])
    read = gzip.decompress if name.endswith(".gz") else bytes
    assert read((columns.path / name).read_bytes()) == read((columns.path / "whole" / name).read_bytes())
    letters = (letters_of((columns.path / path).read_bytes()) for path in ("q.jsonl", "whole/q.jsonl"))
    found, expected = (sorted(some, key=json.dumps) for some in letters)
    assert found == expected
    assert not [path for path in columns.names() if "headrace-" in path]


def test_a_run_killed_while_publishing_its_files_resumes(work, undisturbed, headrace, command, runs):
    """Dead letters are there already, predictions are not."""
    arguments = ("run", "[ab].jsonl", *ARGUMENTS, "--output", "p.jsonl")
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
    assert (work.path / "p.jsonl").read_bytes() == undisturbed[0]


@pytest.mark.large
def test_an_interrupted_run_resumes_only_unchanged(work, undisturbed, headrace, command, runs, wait_until):
    arguments = ["run", "[ab].jsonl", *ARGUMENTS, "--output", "p.jsonl"]
    process = command(*arguments, PAUSE="0.01")
    assert wait_until(lambda: len(runs.done("p.jsonl")) >= 20)
    busy = headrace(*arguments)
    assert busy.code == 2
    assert busy.error.startswith(f"another run (process {process.pid}) is at work in ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    done = len(runs.done("p.jsonl"))
    assert err == (
        f"error: interrupted; nothing was written. ({done} rows are done and kept; the same command goes on from "
        "there.)\n"
    )
    changed = {
        "--handler-arg times": [*arguments, "--handler-arg", "times=2"],
        "--columns": [*arguments, "--columns=n"],
        "the files, the file": [*arguments, "logged.py", "--format=jsonl"],
    }
    for what, line in changed.items():
        result = headrace(*line)
        assert result.code == 2
        assert f"{done} rows of an earlier run are kept for" in result.error
        assert f"these have changed since: {what}" in result.error
    times = os.stat("a.jsonl")
    os.utime("a.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))
    assert f"changed since: the file {work.path / 'a.jsonl'}. Put" in headrace(*arguments).error
    os.utime("a.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    last = headrace(*arguments, "--max-batch-size=64", "--timeout=60")
    assert (last.code, last.summary["done before"]) == (0, str(done))
    assert (work.path / "p.jsonl").read_bytes() == undisturbed[0]


def test_a_run_that_fails_keeps_what_it_has_done(work, headrace):
    lines = [json.dumps({"n": n, "noise": os.urandom(3000).hex()}) for n in range(1000)]
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
