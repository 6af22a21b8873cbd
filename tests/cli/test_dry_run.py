"""``--dry-run`` and ``--limit``: a look at the beginning before a run over everything."""

from functools import partial

import pytest

LINES = "id,text\n" + "".join(f"{n},row {n}\n" for n in range(1, 2001))


@pytest.fixture
def run(folder, run):
    folder.write("in.csv", LINES)
    return partial(run, "--columns", "id", handler="bare", inputs=["in.csv"])


def test_a_dry_run_reads_and_loads_no_model(folder, run):
    result = run("--dry-run", handler="NeverLoads")
    assert (result.code, result.err, folder.names()) == (0, "", ["in.csv"])
    lines = result.out.splitlines()
    assert lines[0] == "the first 1,000 rows: 0 would fail"
    assert [line.split() for line in lines[2:5]] == [
        ["column", "type", "for", "the", "model", "first", "value"],
        ["id", "int", "yes", "1"],
        ["text", "str", "no", "'row", "1'"],
    ]
    assert "example 3\n3\n\nNo model was loaded, and nothing was written." in result.out


def test_a_dry_run_says_what_would_fail(folder, run):
    folder.write("in.csv", "id,text\n1,a\nx,b\n2\n3,d\n")
    result = run("--dry-run")
    assert result.out.startswith("4 rows: 2 would fail\n")
    assert f"  row 2 of {folder.path / 'in.csv'}: column 'id' holds 'x', which does not fit its type, int" in result.out
    assert "row 3 of " in result.out


def test_a_dry_run_needs_no_output(folder, headrace, handlers):
    folder.write("in.csv", "id\n1\n")
    result = headrace("run", "in.csv", "--dry-run", "--handler", f"{handlers}:bare")
    assert (result.code, result.out.startswith("1 row: 0 would fail\n")) == (0, True)
    folder.write("headrace.toml", "[run]\ndry-run = true\n")
    assert headrace("run", "in.csv", "--handler", f"{handlers}:bare").code == 0
    assert folder.names() == ["headrace.toml", "in.csv"]


@pytest.mark.parametrize(("limit", "ids"), [(2003, [*range(1, 2001), 1, 2, 3]), (1, [1])])
def test_a_limit_holds_for_all_files(folder, run, limit, ids):
    folder.write("more.csv", LINES)
    assert run("--limit", limit, inputs=["in.csv", "more.csv"]).code == 0
    assert [row["id"] for row in folder.rows("p.jsonl")] == ids


def test_a_dry_run_shows_prompts(folder, headrace, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    folder.write("in.jsonl", [{"id": 7, "text": "a cat"}])
    options = ("--handler", "openai", "--model", "m", "--prompt", "Classify: {text}", "--dry-run")
    result = headrace("run", "in.jsonl", *options)
    assert (result.code, result.out.startswith("1 row: 0 would fail\n")) == (0, True)
    assert "\nexample 1\nClassify: a cat\n" in result.out
