"""``headrace diff``: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from headrace.cli.main import main
from headrace.metrics.report import report_figures, write_report
from headrace.metrics.timeline import Timeline


@pytest.fixture
def outputs(tmp_path: Path) -> list[str]:
    paths = []
    for name, labels in (("old", ["a", "a", "b", "b"]), ("new", ["a", "c", "b", "b"])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f'{{"id": {row}, "prediction": "{label}"}}\n' for row, label in enumerate(labels)))
        paths.append(str(path))
    return paths


def test_changes_are_counted_and_shown(outputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *outputs, "--id", "id"]) == 0
    shown = capsys.readouterr().out
    assert "rows in both     4\nchanged          1 (25.00%, 95 % interval 4.56% to 69.94%)" in shown
    assert "'a' -> 'c'" in shown
    assert "id=1, prediction_old='a', prediction_new='c'" in shown


def test_json_has_the_same_and_the_threshold_decides_the_exit_code(
    outputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *outputs, "--json", "--threshold", "30%"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["matched"], found["changed"], found["share"]["value"]) == (4, 1, 0.25)
    assert found["columns"][0]["moves"] == [["a", "c", 1]]
    assert main(["diff", *outputs, "--threshold", "20%"]) == 3


def test_json_is_json_of_any_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.csv").write_text("prediction\ninf\n1.5\n")
    (tmp_path / "new.csv").write_text("prediction\n-inf\n1.5\n")
    assert main(["diff", str(tmp_path / "old.csv"), str(tmp_path / "new.csv"), "--json"]) == 0
    (column,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["columns"]
    assert (column["changed"], column["mean"]["value"], column["absolute"]["maximum"]) == (1, None, None)
    for name, value in (("old", b"a"), ("new", b"b")):
        pyarrow.parquet.write_table(pyarrow.table({"prediction": [value]}), tmp_path / f"{name}.parquet")
    assert main(["diff", str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == 1


def test_rows_go_to_a_file_and_mistakes_are_one_line(
    outputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *outputs, "--id", "id", "--output", str(tmp_path / "changes.csv")]) == 0
    assert (tmp_path / "changes.csv").read_text() == 'id,prediction_old,prediction_new\n1,"a","c"\n'
    assert main(["diff", *outputs, "--id", "ids"]) == 2
    assert "no column 'ids'; did you mean 'id'?" in capsys.readouterr().err
    assert main(["diff", *outputs, "--output", str(tmp_path / "changes.txt")]) == 2
    assert main(["diff", *outputs, "--output", outputs[0]]) == 2


def test_what_both_runs_took_stands_beside(
    outputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = {"imports": 1.0, "loading": 1.0, "rows": 7.0, "writing": 1.0}
    for output, seconds, cost in zip(outputs, (10.0, 5.0), (0.5, None), strict=True):
        facts = {"command": "run", "exit_code": 0, "exit_reason": "done", "rows": 450, "seconds": seconds, "cost": cost}
        facts |= {"done_before": 50, "files": {"predictions": output}, "phases": phases}
        write_report(report_figures(facts, Timeline()), str(tmp_path / f"{seconds}.json"))
    (tmp_path / "other.json").write_text("no report")
    assert main(["diff", *outputs]) == 0
    shown = capsys.readouterr().out
    assert "seconds          10 -> 5\nrows/s           50 -> 50\n" in shown
    assert "cost" not in shown, "of one of them nobody knows it"
    assert main(["diff", *outputs, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs["old"] == {"seconds": 10.0, "rows_per_second": 50.0, "cost": 0.5}
