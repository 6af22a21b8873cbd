"""``headrace simulate``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main

ROOT = Path(__file__).parents[2]
PLAN = """
rows = 1000
[models.m]
load_seconds = 2
batch_seconds = { fixed = 0.1, per_row = 0.01 }
min_batch_size = 100
max_batch_size = 100
[machines]
price_per_hour = 3600
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_the_documentation_shows_what_its_example_gives(capsys):
    """Of 100 million rows through 14 models, by 1,000 workers."""
    assert main(["simulate", str(ROOT / "examples/fourteen_models.toml")]) == 0
    assert f"```\n{capsys.readouterr().out}```\n" in (ROOT / "docs/scaling.md").read_text()


def test_figures_are_printed(plan, capsys):
    assert main(["simulate", str(plan)]) == 0
    assert capsys.readouterr().out == (
        "rows        1,000 in 13.0 s: 77 a second\n"
        "machines    1 with 1 workers; 0 times one was preempted\n"
        "held by     model 85%\n"
        "time        model 84.6%, loading 15.4%\n"
        "memory      600 MB of each machine at most, models by process\n"
        "cost        13.00\n"
        "\n"
        "model          time         loads     evictions       batches  rows a batch\n"
        "m            100.0%             1             0            10         100.0\n"
    )


def test_json_has_the_same(plan, capsys):
    assert main(["simulate", str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seconds"], found["loads"], found["cost"]) == (pytest.approx(13), {"m": 1}, pytest.approx(13))
    assert (found["rows_per_second"], found["binds"]) == (pytest.approx(1000 / 13), "model 85%")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rows = 1000", "neither models nor endpoints"),
        ("rows 1000", "cannot read"),
        (PLAN.replace("load_seconds", "load_secs"), "no key 'models.m.load_secs'; did you mean 'load_seconds'?"),
    ],
)
def test_a_wrong_plan_is_one_line(plan, text, says, capsys):
    plan.write_text(text)
    assert main(["simulate", str(plan)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_plan_that_is_not_there_is_an_error(tmp_path, capsys):
    assert main(["simulate", str(tmp_path / "plan.toml")]) == 2
    assert "there is no file" in capsys.readouterr().err
