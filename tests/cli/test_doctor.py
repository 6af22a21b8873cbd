"""``headrace doctor``: what runs, what is left over, and what a handler needs."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys

import numpy
import pytest
import sklearn.linear_model

import headrace as package
from headrace.machine.status import machine_status
from headrace.testing.fakes import DoublingHandler

pytestmark = pytest.mark.large


@pytest.fixture(autouse=True)
def _one_call_is_enough(directory, monkeypatch):
    monkeypatch.setattr("headrace.runtime.profiling._ENOUGH_SECS", 0.0)


@pytest.fixture
def model(folder):
    """The file of a linear model of four columns; and rows for it."""
    classifier = sklearn.linear_model.LogisticRegression().fit(numpy.eye(4), [0, 1, 0, 1])
    (folder.path / "model.pkl").write_bytes(pickle.dumps(classifier))
    folder.write("rows.csv", "a,b,c,d\n" + "".join(f"1,0,{i},2.5\n" for i in range(10)))
    return "model.pkl"


@pytest.fixture
def sharing(wait_until):
    """A model of the machine's, in use; gone in the end."""
    predictions = package.predict(DoublingHandler(max_batch_size=1), iter([1] * 100_000), placement="machine")
    next(predictions)
    yield
    predictions.close()
    assert wait_until(lambda: not machine_status().managers)


def test_doctor_reports_that_nothing_runs(headrace, directory, own_marks):
    result = headrace("doctor")
    assert (result.code, result.err) == (0, "")
    lines = [line.split("  ") for line in result.out.splitlines()]
    lines = {words[0]: words[-1].strip() for words in lines}
    assert lines["runtime directory"] == directory
    assert lines["managers"].startswith("none; one starts when")
    assert lines["left over"] == "nothing"


def test_a_manager_is_shown_and_leftovers_with_the_cure_and_cleaned(headrace, sharing, orphan, directory, wait_until):
    out = headrace("doctor").out
    (manager,) = machine_status().managers
    lines = {line.strip().partition("  ")[0]: line for line in out.splitlines()}
    assert f"process {manager.process.process} (" in lines["manager"]
    assert lines["manager"].endswith("; 1 client")
    assert "DoublingHandler: ready, " in lines["model"]
    assert lines["model"].endswith(", 1 client")
    assert lines["weights"].endswith("  mapped")
    os.kill(manager.process.process, signal.SIGKILL)
    assert wait_until(lambda: machine_status().stale == (manager.endpoint,))
    assert wait_until(lambda: orphan.pid in [one.process for one in machine_status().orphans])
    result = headrace("doctor")
    assert result.code == 1
    assert f"files of endpoint {manager.endpoint}, whose manager is gone" in result.out
    assert f"host process {orphan.pid} (" in result.out
    assert "headrace doctor --clean removes" in result.out
    cleaned = headrace("doctor", "--clean")
    assert f"endpoint {manager.endpoint}" in cleaned.out
    assert f"process {orphan.pid}" in cleaned.out
    assert not os.path.exists(directory)
    assert not machine_status().orphans
    again = headrace("doctor", "--clean", "--json")
    assert (again.code, json.loads(again.out)["nothing_left_over"]) == (0, True)


def test_an_unusable_directory_is_reported(headrace, directory):
    os.chmod(directory, 0o755)
    result = headrace("doctor")
    assert (result.code, f"chmod 700 {directory}" in result.out) == (1, True)


def test_needs_of_a_handler_are_shown(headrace, model, wait_until):
    result = headrace("doctor", "sklearn-numpy", "--model", model, "--rows", "rows.csv", "--columns", "a,b,c,d")
    assert (result.code, result.err) == (0, "")
    lines = {line.strip().partition("  ")[0]: line for line in result.out.splitlines()}
    assert lines["handler"].endswith("sklearn-numpy; asks for placement='process'")
    assert "in load_model" in lines["loading"]
    assert "can be mapped: " in lines["weights"]
    assert lines["private"].endswith(" in each process")
    assert [line.split("  ")[0] for line in result.out.splitlines() if line.startswith("batches of")] == [
        f"batches of {size}" for size in ("1", "8", "64", "512", "4,096")
    ]
    assert "would choose 'process': " in lines["placement='auto'"]
    assert wait_until(lambda: not (machine_status().managers or machine_status().stale))


@pytest.mark.parametrize(("rows", "count"), [((), 0), (("--rows", "rows.csv"), 5)])
def test_needs_of_a_model_alone_are_shown_as_json(headrace, model, rows, count):
    found = json.loads(headrace("doctor", "--model", model, *rows, "--processes", 7, "--json").out)
    (examined,) = found["models"]
    assert (found["handler"], found["processes"], found["choice"]["placement"]) == ("sklearn-numpy", 7, "process")
    assert (examined["mapped"], len(examined["costs"]), examined["trouble"]) == (True, count, "")
    assert found["copy_each"] == 7 * examined["nbytes"]


def test_needs_of_keyed_models_are_shown(headrace, handlers, folder):
    folder.write("rows.jsonl", [{"k": "x", "a": 1, "b": 2}, {"k": "y", "a": 1, "b": 2}])
    options = ["--rows", "rows.jsonl", "--key", "k", "--columns", "a,b", "--max-batch-size", 8]
    result = headrace("doctor", f"{handlers}:keyed", *options)
    assert (result.code, result.err) == (0, "")
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("model ")] == ["x", "y"]
    assert result.out.count("batches of 8 ") == 2
    assert "would choose 'machine': models by key are shared" in result.out


def test_a_model_that_does_not_load_is_reported(headrace, handlers):
    result = headrace("doctor", f"{handlers}:Broken")
    assert (result.code, result.out) == (1, "")
    assert result.error == "the model cannot be loaded: OSError: no such weights: w.pkl"


def test_a_batch_that_fails_is_reported(headrace, handlers, folder):
    folder.write("rows.jsonl", [{"a": "text"}])
    result = headrace("doctor", f"{handlers}:Add", "--rows", "rows.jsonl")
    assert (result.code, "weights" in result.out, result.error.startswith("TypeError: ")) == (1, True, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rows rows.csv", "--rows is about a model; name it: headrace doctor --model FILE."),
        ("--handler-arg a=1", "--handler-arg is about a model"),
        ("sklearn-numpy --clean", "--clean is about the machine; leave HANDLER and --model out."),
        ("sklearn-numpy --processes 0", "Invalid value for '--processes'"),
        ("sklearn-numpy --columns a", "--columns is about rows; name a file of them with --rows."),
        ("sklearn", "there is no handler 'sklearn'; did you mean 'sklearn-"),
        ("sklearn-numpy --model none.pkl", "--model: there is no file 'none.pkl'."),
        ("{}:Add --rows none.csv", "there is no file 'none.csv'."),
        ("{}:Add --inference-arg x=1", "Add takes no inference argument but times"),
        ("{}:Unpicklable", "Unpicklable"),
    ],
)
def test_mistakes_are_named_in_one_line(headrace, handlers, folder, arguments, message):
    result = headrace("doctor", *arguments.format(handlers).split())
    assert (result.code, result.out) == (2, "")
    assert message in result.error


def test_ctrl_c_while_the_model_loads_ends_doctor(command, handlers, folder, directory, wait_until):
    process = command("doctor", f"{handlers}:NeverLoads")
    assert wait_until(lambda: [model for manager in machine_status().managers for model in manager.models])
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (130, "", "error: interrupted.\n")
    assert wait_until(lambda: not machine_status().managers)
    assert machine_status().stale == ()


FORSAKEN = """
import os, signal
from headrace.core.config import Spent
from headrace.machine.shared_file import open_budget_file, shared_board
open_budget_file("a").add(Spent(1, 1, 1))
shared_board("a")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_killed_requests_are_reported_and_removed(headrace, directory, own_marks):
    subprocess.run([sys.executable, "-c", FORSAKEN], check=False)
    names = machine_status().abandoned
    assert sorted(name.rpartition(".")[2] for name in names) == ["budget", "limit"]
    result = headrace("doctor")
    assert result.code == 1
    assert "what was spent of a budget, whose processes were killed" in result.out
    assert "the limit of an endpoint, whose processes were killed" in result.out
    assert json.loads(headrace("doctor", "--json").out)["abandoned"] == list(names)
    cleaned = headrace("doctor", "--clean")
    assert all(f"file {name}" in cleaned.out for name in names)
    assert not os.path.exists(directory)


def test_bad_rows_are_counted_and_left_out(headrace, handlers, folder):
    folder.write("rows.jsonl", '{"a": 1}\n{"a\n{"a": 3}\n')
    arguments = ("doctor", f"{handlers}:Add", "--rows", "rows.jsonl", "--max-batch-size", 8)
    result = headrace(*arguments)
    assert (result.code, result.err, "batches of 8" in result.out) == (0, "", True)
    assert re.search(r"^bad rows +1 left out; the first: \S*JSONDecodeError: ", result.out, re.MULTILINE)
    assert json.loads(headrace(*arguments, "--json").out)["bad_rows"] == 1
