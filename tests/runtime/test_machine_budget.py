"""One budget for all worker processes of a machine, whatever becomes of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from headrace import Budget, BudgetError, Price, predict
from headrace.core.events import UsageReported
from headrace.runtime import usage_meter
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.usage_meter import end_budget, meter_of
from metered import ASKED, Metered

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels", "directory")

PRICES = {"m": Price(request=1)}
USED = UsageReported("m", 1, 1)
WORKER = """
import pickle, sys
from headrace.core.errors import BudgetError
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
spec = pickle.load(open(sys.argv[1], "rb"))
worker = open_worker(spec)
bundle = worker.bundle(FanOut())
answered = 0
print("there", flush=True)
sys.stdin.readline()
try:
    for n in range(100, 500):
        answered += sum(len(outcome.tags) for outcome in bundle.add(n, n))
    answered += sum(len(outcome.tags) for outcome in bundle.finish())
except BudgetError as error:
    print(error, flush=True)
else:
    print("all done", flush=True)
print(len(spec.plan.handler.asked()), flush=True)
sys.stdin.readline()
"""


class Asking(Metered):
    def asked(self):
        return ASKED


def spec_with(budget):
    ASKED.clear()  # it travels with the handler
    return catching(prepare(Asking(), InferenceRequest(budget=budget)), Exception)


@pytest.fixture
def workers(tmp_path, popen):
    """Starts worker processes of one pipeline; returns them once all are there."""

    def start(spec, count):
        path = tmp_path / "spec"
        path.write_bytes(cloudpickle.dumps(spec))
        command = [sys.executable, "-c", WORKER, str(path)]
        started = [popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
        assert [one.stdout.readline() for one in started] == ["there\n"] * count
        return started

    return start


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def end_of(process):
    """What a worker says at its end, and how many requests it has sent."""
    return process.stdout.readline().strip(), int(process.stdout.readline())


def test_worker_processes_of_a_machine_spend_one_budget(workers, directory):
    processes = workers(spec_with(Budget(200, prices=PRICES)), 3)
    for one in processes:
        go(one)
    ends = [end_of(one) for one in processes]
    assert all("the budget of 200 is spent" in said for said, _ in ends), ends
    assert 200 <= sum(asked for _, asked in ends) < 400
    for one in processes:
        one.communicate()
    assert not Path(directory).exists()


def test_killed_worker_process_leaves_what_is_left_of_the_budget(workers, directory):
    spec = spec_with(Budget(200, prices=PRICES))
    (first,) = workers(spec, 1)
    go(first)
    assert "the budget of 200 is spent: 2" in end_of(first)[0]
    first.send_signal(signal.SIGKILL)
    first.wait()
    (second,) = workers(spec, 1)
    go(second)
    said, asked = end_of(second)
    assert re.search("the budget of 200 is spent: 2", said)
    assert asked == 0
    second.communicate()
    assert not Path(directory).exists()


def test_two_runs_of_one_program_have_a_budget_each(workers):
    budget = Budget(450, prices=PRICES)
    processes = [*workers(spec_with(budget), 1), *workers(spec_with(budget), 1)]
    for one in processes:
        go(one)
    assert [end_of(one) for one in processes] == [("all done", 400)] * 2
    for one in processes:
        one.communicate()


def test_predict_leaves_nothing_behind(directory):
    predictions = predict(Metered(), range(100, 300), budget=Budget(20, prices=PRICES))
    assert next(predictions) == 200
    assert len(list(Path(directory).glob("*.budget"))) == 1
    with pytest.raises(BudgetError):
        list(predictions)
    assert not list(Path(directory).glob("*.budget"))


def test_directory_that_cannot_be_used_leaves_each_process_the_budget(directory, monkeypatch, caplog):
    Path(directory, "file").touch()
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{directory}/file")
    spec = spec_with(Budget(2, prices=PRICES))
    meter = meter_of(spec)
    meter.priced(USED)
    assert meter.error is None
    meter.priced(USED)
    assert "2 requests" in str(meter.error)
    assert "Each worker process of this machine may spend the whole budget" in caplog.text
    end_budget(spec)
    Path(directory, "file").unlink()
    Path(directory).rmdir()


def test_file_that_fails_later_leaves_what_this_process_has_spent(directory, caplog):
    spec = spec_with(Budget(3, prices=PRICES))
    meter = meter_of(spec)
    meter.priced(USED)
    (file,) = Path(directory).glob("*.budget")
    os.truncate(file, 8)
    meter.priced(USED)
    assert meter.error is None
    meter.priced(USED)
    assert "3 requests" in str(meter.error)
    assert caplog.text.count("may spend the whole budget") == 1
    end_budget(spec)


def test_budgets_that_nobody_needs_any_more_are_given_up_in_the_end(directory, monkeypatch):
    monkeypatch.setattr(usage_meter, "_KEPT", 3)
    specs = [spec_with(Budget(2, prices=PRICES)) for _ in range(5)]
    for spec in specs:
        meter_of(spec).priced(USED)
    assert len(list(Path(directory).glob("*.budget"))) == 3
    for spec in specs:
        end_budget(spec)
