"""What is on standard output: with ``--json`` one object, with ``--output -`` only predictions, and else a summary."""

import json
import re
import signal
import subprocess

import pytest


@pytest.fixture
def run(folder, run):
    """Runs, and gives the record, too."""
    folder.write("in.jsonl", [{"a": 1}, {"a": "x"}, {"a": "y"}, {"a": 2}])

    def call(*more, **options):
        result = run("--json", *more, **options)
        return result, json.loads(result.out)

    return call


def test_the_record_has_counts_causes_files_and_time(run, folder):
    result, found = run()
    assert (result.code, result.err) == (0, "")
    message = "unsupported operand type(s) for +: 'int' and 'str'"
    cause = {"stage": "inference", "error_type": "TypeError", "message": message, "count": 2}
    phases = found.pop("phases")
    assert abs(sum(phases.values()) - found.pop("seconds")) < 0.01
    assert list(phases) == ["imports", "loading", "rows", "writing"]
    assert found == {
        "exit_code": 0,
        "exit_reason": "done",
        "error": None,
        "rows": 4,
        "done_before": 0,
        "predictions": 2,
        "failures": 2,
        "skipped": 0,
        "unread": 0,
        "inputs": None,
        "failures_by_stage": {"inference": 2},
        "causes": [cause],
        "from_fallback": 0,
        "from_cache": 0,
        "files": {
            "predictions": str(folder.path / "p.jsonl"),
            "dead_letters": str(folder.path / "p.dead-letters.jsonl"),
        },
        "usage": {},
        "cost": None,
    }


@pytest.mark.parametrize(
    ("more", "handler", "code", "reason", "said"),
    [
        (["--threshold", "0.1"], "Add", 3, "refused", "too many rows failed"),
        ([], "Broken", 1, "failed", "no such weights"),
        (["--columns", "b"], "Add", 2, "wrong_argument", "'b'"),
    ],
)
def test_a_run_that_goes_wrong_has_a_record(run, more, handler, code, reason, said):
    result, found = run(*more, handler=handler)
    assert (result.code, found["exit_code"], found["exit_reason"]) == (code, code, reason)
    assert said in found["error"]
    assert found["error"] == result.error
    assert found["files"].get("predictions") is None


def test_what_handlers_print_is_not_on_standard_output(folder, command, handlers):
    folder.write("in.jsonl", [{"a": 1}])
    options = ("--handler", f"{handlers}:Prints", "--output", "p.jsonl", "--json")
    out, err = command("run", "in.jsonl", *options).communicate()
    assert json.loads(out)["exit_code"] == 0
    assert "from Python" in err
    assert "from C" in err


def test_a_run_that_is_interrupted_while_its_model_is_stuck_has_a_record_and_its_figures(folder, command, handlers):
    folder.write("in.jsonl", [{"a": 1}])
    options = ("--handler", f"{handlers}:Waiting", "--output", "p.jsonl", "--json", "--prometheus", "run.prom")
    process = command("run", "in.jsonl", *options, stdin=subprocess.PIPE)
    assert process.stderr.readline() == "at work\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    out, errors = process.communicate()
    found = json.loads(out)
    assert (found["exit_code"], found["exit_reason"], found["rows"]) == (143, "terminated", None)
    assert errors == f"error: {found['error']}\n"
    figures = (folder.path / "run.prom").read_text()
    assert re.search(r"^headrace_model_load_duration_seconds_count\S* 1\.0$", figures, re.MULTILINE)


def test_retry_prints_the_record_too(run):
    run()
    _, found = run("--threshold", "1", command="retry", inputs=["p.dead-letters.jsonl"], output=("--output", "q.jsonl"))
    assert (found["exit_code"], found["rows"], found["failures"]) == (0, 2, 2)


@pytest.fixture
def start(folder, command, handlers):
    """Starts a process that reads three rows, one of them bad, or others."""
    folder.write("in.jsonl", [{"a": 1}, {"a": "x"}, {"a": 2}])

    def start(*more, handler="Prints", file="in.jsonl", stdin=None):
        options = ("--handler", f"{handlers}:{handler}", "--output", "-", "--dead-letters", "d.jsonl", *more)
        return command("run", file, *options, stdin=stdin)

    return start


def test_standard_output_has_the_rows_and_nothing_else(start, folder):
    process = start("--max-batch-size", "1")
    out, err = process.communicate()
    assert process.returncode == 0
    assert [json.loads(line) for line in out.splitlines()] == [{"a": n, "prediction": n + 1} for n in (1, 2)]
    assert "from Python" in err
    assert "from C" in err
    assert "predictions      2" in err
    assert "dead letters in" in err
    assert [letter["row"] for letter in folder.rows("d.jsonl")] == [{"a": "x"}]
    assert folder.names() == ["d.jsonl", "in.jsonl"]


def test_a_reader_that_ends_is_an_error(start, folder):
    folder.write("many.jsonl", [{"a": number} for number in range(20_000)])
    process = start(file="many.jsonl", handler="Add")
    process.stdout.close()
    assert process.stderr.read().endswith("error: standard output did not take all predictions: Broken pipe.\n")
    assert process.wait() == 1


def test_csv_through_a_pipe(start):
    options = ("--format", "csv", "--output-format", "csv", "--max-batch-size", "1")
    process = start(*options, file="-", stdin=subprocess.PIPE)
    out, _ = process.communicate('a,t\n1,"01"\n2,\n')
    assert (process.returncode, out) == (0, 'a,t,prediction\n1,"01",2\n2,,3\n')


def test_too_many_failures_write_nothing(start):
    process = start("--threshold", "1%", "--max-batch-size", "1")
    out, err = process.communicate()
    assert (process.returncode, out) == (3, "")
    assert "standard output was not written" in err
