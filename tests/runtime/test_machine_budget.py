"""One budget for all worker processes of a machine, whatever becomes of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from full_disk import full_disk
from headrace import Budget, BudgetError, Price, predict
from headrace.core.events import UsageReported
from headrace.runtime import usage_meter
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.usage_meter import end_budget, meter_of
from metered import Metered

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels", "directory")

PRICES = {"m": Price(request=1)}
USED = UsageReported("m", 1, 1)


def spec_with(budget):
    return catching(prepare(Metered(), InferenceRequest(budget=budget)), Exception)


def spent(worker):
    """How many requests all processes together have sent, as the one says whose bundle fails."""
    with pytest.raises(BudgetError, match="the budget of 200 is spent") as caught:
        worker.outcomes()
    return int(re.search(r"(\d+) requests", str(caught.value))[1])


def test_worker_processes_of_a_machine_spend_one_budget_and_those_killed_leave_what_is_left(worker_process, directory):
    spec = spec_with(Budget(200, prices=PRICES))
    workers = [worker_process(spec) for _ in range(2)]
    for worker in workers:
        assert worker.run([1]).good == [2]
    for worker in workers:
        worker.begin(range(100, 500))
    assert all(200 <= spent(worker) < 400 for worker in workers)
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
    late, totals = [worker_process(spec) for _ in range(2)], []
    for worker in late:
        worker.begin([100])
        totals.append(spent(worker))
    assert totals[0] == totals[1] < 400
    for worker in late:
        worker.close()
    assert not Path(directory).exists()


def test_two_runs_of_one_program_have_a_budget_each():
    budget = Budget(2, prices=PRICES)
    specs = [spec_with(budget) for _ in range(2)]
    for spec in specs:
        meter_of(spec).priced(USED)
        assert meter_of(spec).error is None
    for spec in specs:
        end_budget(spec)


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
    with full_disk(8):
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
