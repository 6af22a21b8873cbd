"""``headrace diff``: what it prints, and its exit codes."""

import json

import pytest

from headrace.metrics.report import report_figures, write_report
from headrace.metrics.timeline import Timeline


@pytest.fixture
def diff(folder, headrace):
    """Compares the files ``old`` and ``new``; one of their four predictions differs."""
    for name, labels in (("old", "aabb"), ("new", "acbb")):
        folder.write(f"{name}.jsonl", [{"id": row, "prediction": label} for row, label in enumerate(labels)])
    return lambda *more, ending="jsonl": headrace("diff", f"old.{ending}", f"new.{ending}", *more)


def test_changes_are_counted_and_shown(diff):
    result = diff("--id", "id")
    assert result.code == 0
    assert "rows in both     4\nchanged          1 (25.00%, 95 % interval 4.56% to 69.94%)" in result.out
    assert "'a' -> 'c'" in result.out
    assert "id=1, prediction_old='a', prediction_new='c'" in result.out


def test_json_has_the_same_and_the_threshold_decides_the_exit_code(diff):
    result = diff("--json", "--threshold", "30%")
    found = json.loads(result.out)
    assert (result.code, found["matched"], found["changed"], found["share"]["value"]) == (0, 4, 1, 0.25)
    assert found["columns"][0]["moves"] == [["a", "c", 1]]
    assert diff("--json", "--threshold", "20%").code == 3


def test_json_is_json_of_any_values(folder, diff):
    for name, number, value in (("old", "inf", b"a"), ("new", "-inf", b"b")):
        folder.write(f"{name}.csv", f"prediction\n{number}\n1.5\n")
        folder.write(f"{name}.parquet", [{"prediction": value}])
    (column,) = json.loads(diff("--json", ending="csv").out, parse_constant=pytest.fail)["columns"]
    assert (column["changed"], column["mean"]["value"], column["absolute"]["maximum"]) == (1, None, None)
    assert json.loads(diff("--json", ending="parquet").out)["changed"] == 1


def test_rows_go_to_a_file_and_mistakes_are_one_line(folder, diff):
    assert diff("--id", "id", "--output", "changes.csv").code == 0
    assert (folder.path / "changes.csv").read_text() == 'id,prediction_old,prediction_new\n1,"a","c"\n'
    assert "no column 'ids'; did you mean 'id'?" in diff("--id", "ids").error
    assert [diff("--output", output).code for output in ("changes.txt", "old.jsonl")] == [2, 2]


def test_what_both_runs_took_stands_beside(folder, diff):
    phases = {"imports": 1.0, "loading": 1.0, "rows": 7.0, "writing": 1.0}
    for name, seconds, cost in (("old", 10.0, 0.5), ("new", 5.0, None)):
        facts = {"command": "run", "exit_code": 0, "exit_reason": "done", "rows": 450, "seconds": seconds, "cost": cost}
        facts |= {"done_before": 50, "files": {"predictions": str(folder.path / f"{name}.jsonl")}, "phases": phases}
        write_report(report_figures(facts, Timeline()), f"{seconds}.json")
    folder.write("other.json", "no report")
    shown = diff().out
    assert "seconds          10 -> 5\nrows/s           50 -> 50\n" in shown
    assert "cost" not in shown, "of one of them nobody knows it"
    assert json.loads(diff("--json").out)["runs"]["old"] == {"seconds": 10.0, "rows_per_second": 50.0, "cost": 0.5}
