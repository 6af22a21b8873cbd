"""``headrace run --report`` and ``headrace report``."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("matplotlib")

ASKS = """
import headrace


class Asks(headrace.RemoteModelHandler):
    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        return [row["a"] for row in batch]
"""


@pytest.fixture
def run(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, {"a": "secret-1"}, {"a": "secret-2"}, {"a": 2}])

    def call(*more, name="Add"):
        return headrace("run", "in.jsonl", "--output", "p.jsonl", "--handler", f"{handlers}:{name}", *more)

    return call


def test_a_report_has_the_runs_figures_and_no_values_of_rows(run, folder):
    assert run("--report", "run.html").code == 0
    page, figures = ((folder.path / f"run.{kind}").read_text() for kind in ("html", "json"))
    facts = json.loads(figures)
    assert (facts["rows"], facts["predictions"], facts["failures"]) == (4, 2, 2)
    assert sum(facts["timeline"]["rows"]) == 2
    assert facts["wall"]["sampled_seconds"] > 0
    assert "4 rows in = 4 predictions, dead letters and skipped rows." in page
    assert "secret" not in page + figures


def test_causes_without_messages_are_one_for_each_kind_of_error(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, *({"a": f"x{number}"} for number in range(9))])
    arguments = ("run", "in.jsonl", "--output", "p.jsonl", "--handler", f"{handlers}:Vectors", "--report", "r.json")
    assert headrace(*arguments).code == 0
    (cause,) = json.loads((folder.path / "r.json").read_text())["causes"]
    assert (cause["message"], cause["count"]) == ("", 9)


def test_messages_are_quoted_on_request(run, folder):
    assert run("--report", "run.json", "--report-messages").code == 0
    assert "unsupported operand" in (folder.path / "run.json").read_text()
    assert not (folder.path / "run.html").exists()


def test_a_run_that_fails_has_a_report_too(run, folder):
    assert run("--report", "run.html", name="Broken").code == 1
    facts = json.loads((folder.path / "run.json").read_text())
    assert (facts["exit_code"], facts["exit_reason"], facts["rows"]) == (1, "failed", None)
    assert "The run did not get to its end" in (folder.path / "run.html").read_text()


def test_a_wrong_name_is_refused_before_the_run(run, folder):
    result = run("--report", "run.pdf")
    assert result.code == 2
    assert "ends in .html or .json" in result.err
    assert not (folder.path / "p.jsonl").exists()


def test_pages_are_made_again_and_compared(run, headrace, folder):
    run("--report", "one.json")
    run("--report", "two.json")
    result = headrace("report", "two.json", "--compare", "one.json", "--output", "both.html")
    assert result.code == 0
    assert "2 dead letters" in result.out
    assert "Compared" in (folder.path / "both.html").read_text()
    assert headrace("report", "p.jsonl").code == 2


def test_more_workers_are_no_advice_where_the_model_computes_elsewhere(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, {"a": 2}])
    folder.write("asks.py", ASKS)
    arguments = ("run", "in.jsonl", "--output", "p.jsonl", "--report", "r.json", "--handler")
    for more, is_elsewhere in (
        ([f"{handlers}:Add"], False),
        ([f"{handlers}:Add", "--isolate"], True),
        (["asks:Asks"], True),
    ):
        assert headrace(*arguments, *more).code == 0
        assert json.loads((folder.path / "r.json").read_text())["keeps_one_worker"] is is_elsewhere


def test_samples_of_workers_come_along(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": number} for number in range(2000)])
    result = headrace(
        "run", "in.jsonl", "--output", "p.jsonl", "--handler", f"{handlers}:Add", "--workers", "2", "--report", "r.json"
    )
    assert result.code == 0
    facts = json.loads((folder.path / "r.json").read_text())
    assert sum(facts["timeline"]["rows"]) == 2000
    assert facts["workers"] == 2


STEPS = """
import time

import headrace


def busy(value):
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    return value


class Adds(headrace.ModelHandler):
    def load_model(self):
        return sum

    def run_inference(self, batch, model, inference_args=None):
        return [model(row.values()) for row in batch]


def steps():
    return Adds().with_preprocess_fn(busy).with_postprocess_fn(busy)
"""


def test_samples_tell_what_an_isolated_host_is_at(folder, headrace):
    folder.write("in.jsonl", [{"a": number} for number in range(4)])
    folder.write("steps.py", STEPS)
    arguments = ("run", "in.jsonl", "--output", "p.jsonl", "--handler", "steps:steps", "--isolate", "--report")
    assert headrace(*arguments, "r.json").code == 0
    facts = json.loads((folder.path / "r.json").read_text())
    spent = facts["wall"]["busy_seconds"]
    assert spent["preprocessing"] > spent.get("model", 0)
    assert spent["postprocessing"] > spent.get("model", 0)
    assert sum(facts["timeline"]["cpu_seconds"]) > 1, "of the host"
