"""``--json``: one object on standard output says what came of a run."""

import json
import signal
import subprocess
import sys

import pytest

PRINTS = '''
import os
import headrace


class Prints(headrace.RemoteModelHandler):
    """Prints as Python and as C do."""

    def create_client(self):
        print("from Python")
        return None

    def request(self, batch, model, inference_args=None):
        os.write(1, b"from C")
        headrace.report_usage("m", input_tokens=10, output_tokens=5)
        return [row["a"] + 1 for row in batch]
'''


@pytest.fixture
def run(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, {"a": "x"}, {"a": "y"}, {"a": 2}])

    def call(*more, name="Add", words=("run", "in.jsonl", "--output", "p.jsonl")):
        result = headrace(*words, "--handler", f"{handlers}:{name}", "--json", *more)
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
    ("more", "name", "code", "reason", "said"),
    [
        (["--threshold", "0.1"], "Add", 3, "refused", "too many rows failed"),
        ([], "Broken", 1, "failed", "no such weights"),
        (["--columns", "b"], "Add", 2, "wrong_argument", "'b'"),
    ],
)
def test_a_run_that_goes_wrong_has_a_record(run, more, name, code, reason, said):
    result, found = run(*more, name=name)
    assert (result.code, found["exit_code"], found["exit_reason"]) == (code, code, reason)
    assert said in found["error"]
    assert found["error"] == result.error
    assert found["files"].get("predictions") is None


def test_what_handlers_print_is_not_on_standard_output(folder):
    folder.write("prints.py", PRINTS)
    folder.write("in.jsonl", [{"a": 1}])
    program = "import sys; from headrace.cli.main import main; sys.exit(main())"
    words = ["run", "in.jsonl", "--handler", "prints:Prints", "--output", "p.jsonl", "--json", "--price", "m=1e6,0"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["usage"] == {"m": {"requests": 1, "input_tokens": 10, "output_tokens": 5, "cost": 10.0}}
    assert found["cost"] == 10.0
    assert "from Python" in done.stderr
    assert "from C" in done.stderr


@pytest.mark.large
def test_an_interrupted_run_has_a_record(folder, command, handlers):
    folder.write("in.jsonl", [{"a": 1}])
    process = command("run", "in.jsonl", "--handler", f"{handlers}:Slow", "--output", "p.jsonl", "--json")
    assert process.stderr.readline() == "at work\n"
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    found = json.loads(out)
    assert (process.returncode, found["exit_code"], found["exit_reason"]) == (143, 143, "terminated")
    assert (found["rows"], errors) == (None, f"error: {found['error']}\n")


def test_retry_prints_the_record_too(run):
    run()
    _, found = run("--threshold", "1", words=("retry", "p.dead-letters.jsonl", "--output", "q.jsonl"))
    assert (found["exit_code"], found["rows"], found["failures"]) == (0, 2, 2)
