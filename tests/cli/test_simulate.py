"""``headrace simulate``: what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest

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


@pytest.mark.large
def test_the_documentation_shows_what_its_example_gives(headrace):
    """Of 100 million rows through 14 models, by 1,000 workers."""
    result = headrace("simulate", ROOT / "examples/fourteen_models.toml")
    assert result.code == 0
    assert f"```\n{result.out}```\n" in (ROOT / "docs/scaling.md").read_text()


def test_figures_are_printed_as_json(folder, headrace):
    folder.write("plan.toml", PLAN)
    found = json.loads(headrace("simulate", "plan.toml", "--json").out)
    assert (found["seconds"], found["loads"], found["cost"]) == (pytest.approx(13), {"m": 1}, pytest.approx(13))
    assert (found["rows_per_second"], found["binds"]) == (pytest.approx(1000 / 13), "model 85%")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rows = 1000", "neither models nor endpoints"),
        ("rows 1000", "cannot read"),
        (PLAN.replace("load_seconds", "load_secs"), "no key 'models.m.load_secs'; did you mean 'load_seconds'?"),
        (None, "there is no file"),
    ],
    ids=["empty", "no TOML", "misspelt", "absent"],
)
def test_a_wrong_plan_is_one_line(folder, headrace, text, says):
    if text is not None:
        folder.write("plan.toml", text)
    result = headrace("simulate", "plan.toml")
    assert result.code == 2
    assert says in result.error
