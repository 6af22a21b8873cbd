"""Pipes as inputs: each row comes out once, or the run says why not."""

import json
import os
import socket
import threading
from contextlib import contextmanager

import pytest

ROWS = 3000
CSV = "a,b\n" + "".join(f"{n},{n}\n" for n in range(ROWS))
JSONL = "".join(json.dumps({"a": n, "b": n}) + "\n" for n in range(ROWS))
PREDICTIONS = [2 * n for n in range(ROWS)]
DEADLINE = 120


@contextmanager
def pipe(content):
    """The path of a pipe, as a shell names it for <(...); a thread writes into it, some bytes at a time."""
    out, into = os.pipe()

    def write():
        with open(into, "wb", buffering=0) as end:
            for start in range(0, len(content), 1000):
                end.write(content[start : start + 1000])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield f"/dev/fd/{out}"
    finally:
        os.close(out)
        writer.join(DEADLINE)
    assert not writer.is_alive()


@pytest.mark.parametrize(("name", "content"), [("csv", CSV), ("jsonl", JSONL)])
def test_each_row_of_a_pipe_comes_out_once(folder, run, name, content):
    with pipe(content.encode()) as path:
        result = run("--format", name, inputs=[path])
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == PREDICTIONS


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--format csv --resume", "is a pipe, which can be read only once, and by this process only"),
        ("--format csv --direct_num_workers=2", "leave --runner and the options of workers out"),
        ("--format csv --direct_running_mode=multi_processing", "or write what comes through it"),
        ("--format csv --runner PrismRunner", "is a pipe, which can be read only once"),
        ("--format parquet", "is a pipe, and Parquet has to be read from its end: write it to a file first."),
        ("", "is a pipe, which tells no format; add --format jsonl or csv."),
    ],
)
def test_pipes_that_cannot_be_read_are_named(mistake, arguments, error):
    with pipe(CSV[:4000].encode()) as path:
        assert error in mistake(*arguments.split(), inputs=[path])


def test_inputs_that_are_neither_files_nor_pipes_are_refused(mistake):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.csv")
        for name in ("socket.csv", "/dev/zero"):
            error = mistake("--format", "csv", inputs=[name])
            assert "is a device or a socket, neither a file nor a pipe." in error
    os.mkfifo("letters.jsonl")
    error = mistake(command="retry", inputs=["letters.jsonl"])
    assert error.endswith("is a pipe; write the dead letters that come through it to a file.")


@pytest.mark.parametrize("name", ["{}", "/dev/null", "in.csv {}", "{}.gz"])
def test_a_pipe_that_ends_without_a_byte_replaces_nothing(folder, run, name):
    """What should have written into it has failed."""
    folder.write("in.csv", "a,b\n1,2\n")
    folder.write("p.jsonl", "old\n")
    with pipe(b"") as path:
        if name.endswith(".gz"):
            os.symlink(path, path := folder.path / "in.gz")
            name = "{}"
        result = run("--format", "csv", inputs=name.format(path).split())
    assert (result.code, result.out) == (3, "")
    assert "the command that writes into it has most likely failed; run it by itself to see why." in result.error
    assert [path for path in folder.names() if path != "in.gz"] == ["in.csv", "p.jsonl"]
    assert (folder.path / "p.jsonl").read_text() == "old\n"
