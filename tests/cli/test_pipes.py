"""Pipes as inputs: each row comes out once, or the run says why not."""

import json
import os
import socket
import subprocess
import threading
from contextlib import contextmanager

import pytest

ROWS = 3000
CSV = "a,b\n" + "".join(f"{n},{n}\n" for n in range(ROWS))
JSONL = "".join(json.dumps({"a": n, "b": n}) + "\n" for n in range(ROWS))
PREDICTIONS = [2 * n for n in range(ROWS)]
DEADLINE = 120


@pytest.fixture
def run(headrace, handlers):
    return lambda *arguments: headrace("run", "--handler", f"{handlers}:Add", "--output", "p.jsonl", *arguments)


@contextmanager
def writing(content, open_end):
    """Another thread opens a pipe and writes into it, some bytes at a time."""

    def write():
        with open(open_end, "wb", buffering=0) as end:
            for start in range(0, len(content), 1000):
                end.write(content[start : start + 1000])

    writer = threading.Thread(target=write)
    writer.start()
    yield
    writer.join(DEADLINE)
    assert not writer.is_alive()


@contextmanager
def pipe(content):
    """The path of a pipe with a writer, as a shell names it for <(...)."""
    out, into = os.pipe()
    with writing(content, into):
        try:
            yield f"/dev/fd/{out}"
        finally:
            os.close(out)


@pytest.mark.parametrize(("name", "content"), [("csv", CSV), ("jsonl", JSONL)])
def test_each_row_of_a_pipe_comes_out_once(folder, run, name, content):
    with pipe(content.encode()) as path:
        result = run(path, "--format", name)
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == PREDICTIONS


@pytest.mark.large
def test_standard_input_is_read(folder, command, handlers):
    arguments = ("run", "--handler", f"{handlers}:Add", "--format", "csv", "--output")
    names = {"p.jsonl": "-", "q.jsonl": "/dev/stdin"}
    running = [command(*arguments, output, name, stdin=subprocess.PIPE) for output, name in names.items()]
    assert [(process.communicate(CSV, DEADLINE)[1], process.returncode) for process in running] == [("", 0)] * 2
    assert [[row["prediction"] for row in folder.rows(name)] for name in names] == [PREDICTIONS] * 2


@pytest.mark.parametrize(
    ("arguments", "content", "error"),
    [
        (
            ["--format", "csv", "--resume"],
            CSV,
            "is a pipe, which can be read only once, and by this process only",
        ),
        (["--format", "csv", "--direct_num_workers=2"], CSV, "leave --runner and the options of workers out"),
        (
            ["--format", "csv", "--direct_running_mode=multi_processing"],
            CSV,
            "or write what comes through it",
        ),
        (["--format", "csv", "--runner", "PrismRunner"], CSV, "is a pipe, which can be read only once"),
        (["--format", "parquet"], "", "is a pipe, and Parquet has to be read from its end: write it to a file first."),
        ([], CSV, "is a pipe, which tells no format; add --format jsonl or csv."),
    ],
)
def test_pipes_that_cannot_be_read_are_named(folder, run, arguments, content, error):
    with pipe(content if isinstance(content, bytes) else content[:4000].encode()) as path:
        result = run(path, *arguments)
    assert (result.code, result.out) == (2, "")
    assert error in result.error
    assert folder.names() == []


def test_inputs_that_are_neither_files_nor_pipes_are_refused(folder, run, headrace, handlers):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.csv")
        for name in ("socket.csv", "/dev/zero"):
            assert "is a device or a socket, neither a file nor a pipe." in run(name, "--format", "csv").error
    os.mkfifo("letters.jsonl")
    retried = headrace("retry", "letters.jsonl", "--handler", f"{handlers}:Add", "--output", "p.jsonl")
    assert retried.error.endswith("is a pipe; write the dead letters that come through it to a file.")


@pytest.mark.parametrize("name", ["{}", "/dev/null", "in.csv {}", "{}.gz"])
def test_a_pipe_that_ends_without_a_byte_replaces_nothing(folder, run, name):
    """What should have written into it has failed."""
    folder.write("in.csv", "a,b\n1,2\n")
    folder.write("p.jsonl", "old\n")
    with pipe(b"") as path:
        if name.endswith(".gz"):
            os.symlink(path, path := folder.path / "in.gz")
            name = "{}"
        result = run(*name.format(path).split(), "--format", "csv")
    assert (result.code, result.out) == (3, "")
    assert "the command that writes into it has most likely failed; run it by itself to see why." in result.error
    assert [path for path in folder.names() if path != "in.gz"] == ["in.csv", "p.jsonl"]
    assert (folder.path / "p.jsonl").read_text() == "old\n"
