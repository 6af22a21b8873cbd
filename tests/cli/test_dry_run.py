"""``--dry-run`` and ``--limit``: a look at the beginning before a run over everything."""

import pytest

LINES = "id,text\n" + "".join(f"{n},row {n}\n" for n in range(1, 2001))


@pytest.fixture
def run(folder, headrace, handlers):
    folder.write("in.csv", LINES)

    def call(handler, *arguments):
        return headrace("run", "in.csv", "--handler", f"{handlers}:{handler}", "--output", "p.jsonl", *arguments)

    return call


def test_a_dry_run_reads_and_loads_no_model(folder, run):
    result = run("NeverLoads", "--columns", "id", "--dry-run")
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
    result = run("bare", "--columns", "id", "--dry-run")
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


def test_a_limit_holds_for_all_files(folder, run, headrace, handlers):
    folder.write("more.csv", LINES)
    files = ("in.csv", "more.csv")
    arguments = ("--handler", f"{handlers}:bare", "--columns", "id", "--output", "p.jsonl")
    assert headrace("run", *files, *arguments, "--limit", 2003).code == 0
    assert [row["id"] for row in folder.rows("p.jsonl")] == [*range(1, 2001), 1, 2, 3]
    assert headrace("run", *files, *arguments, "--limit", 1).code == 0
    assert [row["id"] for row in folder.rows("p.jsonl")] == [1]


def test_a_share_may_be_a_percentage(folder, run):
    folder.write("in.csv", "id,text\n" + "".join(f"{n},{n}\n" for n in range(99)) + "x,1\n")
    options = ("--columns", "id", "--types", "id=int")
    assert run("bare", *options, "--threshold", "0.9%").code == 3
    assert run("bare", *options, "--threshold", "1%").code == 0
    refused = run("bare", *options, "--threshold", "many")
    assert (refused.code, "'many' is no share of the rows; give 0.01 or 1%" in refused.err) == (2, True)


@pytest.mark.parametrize("wrong", [("--resume",), ("--runner", "FnApiRunner"), ("--direct_num_workers=2",)])
def test_a_limit_is_for_a_short_run_in_this_process(run, wrong):
    refused = run("bare", "--limit", 5, *wrong)
    assert (refused.code, "--limit is for a short run" in refused.err) == (2, True)


def test_a_dry_run_shows_prompts(folder, headrace, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    folder.write("in.jsonl", [{"id": 7, "text": "a cat"}])
    options = ("--handler", "openai", "--model", "m", "--prompt", "Classify: {text}", "--output", "p.jsonl")
    result = headrace("run", "in.jsonl", *options, "--dry-run")
    assert (result.code, result.out.startswith("1 row: 0 would fail\n")) == (0, True)
    assert "\nexample 1\nClassify: a cat\n" in result.out
