"""``--output -``: only predictions on standard output, the summary beside it."""

import json
import subprocess

import pytest

PRINTS = """
import os
import headrace


class Prints(headrace.ModelHandler):
    def load_model(self):
        print("from Python")
        return None

    def run_inference(self, batch, model, inference_args=None):
        os.write(1, b"from C")
        return [row["a"] + 1 for row in batch]
"""


@pytest.fixture
def run(folder, command):
    """Runs in a process of its own over three rows, one of them bad; gives exit code, output and errors."""
    folder.write("prints.py", PRINTS)
    folder.write("in.jsonl", [{"a": 1}, {"a": "x"}, {"a": 2}])

    def call(*more, file="in.jsonl", stdin=None, letters=("--dead-letters", "d.jsonl")):
        arguments = ("run", file, "--handler", "prints:Prints", "--output", "-", *letters, *more)
        process = command(*arguments, stdin=subprocess.PIPE if stdin else None)
        out, err = process.communicate(stdin)
        return process.returncode, out, err

    return call


def test_standard_output_has_the_rows_and_nothing_else(run, folder):
    code, out, err = run("--max-batch-size", "1")
    assert (code, list(map(json.loads, out.splitlines()))) == (0, [{"a": n, "prediction": n + 1} for n in (1, 2)])
    assert "from Python" in err
    assert "from C" in err
    assert "predictions      2" in err
    assert "dead letters in" in err
    assert [letter["row"] for letter in folder.rows("d.jsonl")] == [{"a": "x"}]
    assert folder.names() == ["d.jsonl", "in.jsonl", "prints.py"]


def test_a_reader_that_ends_is_an_error(run, folder, command):
    folder.write("many.jsonl", [{"a": number} for number in range(20_000)])
    process = command(
        *("run", "many.jsonl", "--handler", "prints:Prints", "--output", "-", "--dead-letters", "d.jsonl")
    )
    process.stdout.close()
    assert process.stderr.read().endswith("error: standard output did not take all predictions: Broken pipe.\n")
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--output", "-"), "--output - needs --dead-letters FILE"),
        (("--output", "-", "--dead-letters", "d.jsonl", "--resume"), "leave --resume out, or name a file"),
        (("--output", "-", "--dead-letters", "d.jsonl", "--json"), "--json prints on standard output"),
        (("--output", "p.jsonl", "--output-format", "csv"), "--output-format is for --output -"),
    ],
)
def test_mistakes(folder, headrace, handlers, options, error):
    folder.write("in.jsonl", [{"a": 1}])
    result = headrace("run", "in.jsonl", "--handler", f"{handlers}:Add", *options)
    assert result.code == 2
    assert error in result.err
    assert folder.names() == ["in.jsonl"]


def test_csv_through_a_pipe(run):
    options = ("--format", "csv", "--output-format", "csv", "--max-batch-size", "1")
    code, out, _ = run(*options, file="-", stdin='a,t\n1,"01"\n2,\n')
    assert (code, out) == (0, 'a,t,prediction\n1,"01",2\n2,,3\n')


def test_too_many_failures_write_nothing(run):
    code, out, err = run("--threshold", "1%", "--max-batch-size", "1")
    assert (code, out) == (3, "")
    assert "standard output was not written" in err
