"""``headrace run --changed-since``: only what has changed is predicted, and the output is that of a whole run."""

import json

import pytest

ROWS = [{"a": number, "text": f"é{number}"} for number in range(50)]
HANDLER = """
import headrace


class Twice(headrace.ModelHandler):
    def __init__(self, plus=0, model_id=None):
        super().__init__()
        self.plus, self.model_id = plus, model_id

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        assert self.plus or "worse" not in [row["text"] for row in batch]
        found = [{"twice": 2 * row["a"] + self.plus, "name": row["text"]} for row in batch]
        return [headrace.PredictionResult(row, one, self.model_id) for row, one in zip(batch, found)]

"""
CHANGED = [{"a": -1, "text": "new"}, *ROWS[:10], {"a": 10, "text": "other"}, *ROWS[30:], ROWS[5]]
"""All but two of them are among ``ROWS``."""


@pytest.fixture
def run(own, headrace):
    own.write("doubles.py", HANDLER)
    own.write("monday.jsonl", ROWS)
    own.write("tuesday.jsonl", CHANGED)

    def call(source, output, *more):
        return headrace("run", source, "--handler", "doubles:Twice", "--output", output, "--json", *more)

    return call


def facts_of(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


MORE = ((), ("--explode",), ("--handler-arg", "model_id=v1"), ("--explode", "--columns", "text,a"))


@pytest.mark.parametrize(("old", "more"), [*zip(["old.parquet", "old.jsonl", "old.jsonl.gz", "old.parquet"], MORE)])
def test_the_output_is_that_of_a_whole_run(run, folder, old, more):
    facts_of(run("monday.jsonl", old, "--report", "monday.json", *more))
    facts_of(run("tuesday.jsonl", "whole.jsonl", *more))
    facts = facts_of(run("tuesday.jsonl", "new.jsonl", "--changed-since", old, *more))
    assert (facts["rows"], facts["predictions"], facts["from_cache"]) == (len(CHANGED), len(CHANGED), len(CHANGED) - 2)
    assert folder.rows("new.jsonl") == folder.rows("whole.jsonl")


@pytest.mark.parametrize(("source", "more"), [*zip(["jsonl", "csv", "csv", "jsonl"], MORE)])
def test_of_csv_the_cells_are_taken_over(run, folder, source, more):
    odd = [{"a": 7, "text": "", "c": None}, {"a": 8, "text": "1", "c": ["x", 1.0]}, {"a": 9, "text": "true", "c": 0.1}]
    days = {"monday": odd + [{**row, "c": {"é": None}} for row in ROWS]}
    days["tuesday"] = [{**row, "c": {"é": None}} for row in CHANGED] + odd
    for day, rows in days.items():
        folder.write(f"{day}.{source}", rows if source == "jsonl" else as_csv(rows))
    facts_of(run(f"monday.{source}", "old.csv", "--report", "monday.json", *more))
    facts_of(run(f"tuesday.{source}", "whole.csv", *more))
    facts = facts_of(run(f"tuesday.{source}", "new.csv", "--changed-since", "old.csv", *more))
    assert facts["from_cache"] == len(CHANGED) - 2 + len(odd)
    assert (folder.path / "new.csv").read_text() == (folder.path / "whole.csv").read_text()


def as_csv(rows):
    cells = ((row["a"], row["text"], json.dumps(row["c"]).replace('"', '""')) for row in rows)
    return "a,text,c\n" + "".join('{},{},"{}"\n'.format(*some) for some in cells)


def test_workers_and_formats_take_over_as_well(run, folder):
    folder.write("monday.parquet", ROWS)
    facts_of(run("monday.parquet", "old.parquet", "--report", "monday.json"))
    facts = facts_of(run("tuesday.jsonl", "new.parquet", "--changed-since", "old.parquet", "--workers", "2"))
    assert facts["from_cache"] == len(CHANGED) - 2
    facts_of(run("tuesday.jsonl", "whole.parquet"))
    assert folder.rows("new.parquet") == folder.rows("whole.parquet")


def test_predictions_of_several_forms_are_in_their_columns_again(headrace, run, folder):
    folder.write("mixed.py", HANDLER.replace("} for row", '} if row["a"] % 2 else row["a"] for row'))
    for output, option in (("old", ("--report", "old.json")), ("new", ("--changed-since", "old.parquet"))):
        more = ("--handler", "mixed:Twice", "--explode", "--output", f"{output}.parquet", *option)
        assert headrace("run", "monday.jsonl", *more).code == 0
    assert folder.rows("new.parquet") == folder.rows("old.parquet")


def test_rows_that_failed_are_predicted_again(run, folder):
    folder.write("monday.jsonl", [{"a": 1, "text": "x"}, {"a": 2}, {"a": 3, "text": "y"}])
    facts = facts_of(run("monday.jsonl", "old.jsonl", "--report", "monday.json"))
    assert facts["failures"] == 1
    facts = facts_of(run("monday.jsonl", "new.jsonl", "--changed-since", "old.jsonl"))
    assert (facts["from_cache"], facts["predictions"], facts["failures"]) == (2, 2, 1)


def test_the_report_of_a_retry_says_nothing_of_the_other_rows(run, folder, headrace):
    folder.write("monday.jsonl", [{"a": 1, "text": "x"}, {"a": 2, "text": "worse"}])
    facts_of(run("monday.jsonl", "old.jsonl", "--report", "monday.json"))
    newer = ("--handler", "doubles:Twice", "--handler-arg", "plus=1")
    facts_of(headrace("retry", "old.dead-letters.jsonl", "--into", "old.jsonl", *newer, "--json", "--report", "x.json"))
    result = run("monday.jsonl", "new.jsonl", "--changed-since", "old.jsonl", *newer[2:])
    assert (result.code, "one of a retry" in result.err) == (2, True)


@pytest.mark.parametrize("change", ["option", "argument", "model"])
def test_a_model_that_has_changed_predicts_all_rows(run, folder, change):
    (folder.path / "weights").write_text("1")
    more = ("--handler-arg", "model_id=weights")
    facts_of(run("monday.jsonl", "old.jsonl", "--report", "monday.json", *more))
    if change == "option":
        more = (*more, "--handler-arg", "plus=1")
    elif change == "model":
        (folder.path / "weights").write_text("12")
    else:
        more = ("--handler-arg", "model_id=weights", "--inference-arg", "x=1")
    result = run("tuesday.jsonl", "new.jsonl", "--changed-since", "old.jsonl", *more)
    assert facts_of(result)["from_cache"] == 0
    assert "has changed since old.jsonl: all rows are predicted" in result.err


def test_what_cannot_be_compared_is_one_error_before_the_run(run, folder):
    facts_of(run("monday.jsonl", "old.jsonl", "--report", "monday.json"))
    facts_of(run("monday.jsonl", "kept.jsonl", "--keep", "a", "--columns", "a,text", "--report", "kept.json"))
    facts_of(run("monday.jsonl", "all.jsonl", "--keep", "a", "--report", "all.json"))
    facts_of(run("monday.jsonl", "bare.csv", "--report", "bare.json"))
    facts_of(run("monday.jsonl", "over.jsonl", "--report", "over.json"))
    facts_of(run("monday.jsonl", "over.jsonl", "--handler-arg", "plus=7"))
    for old, more, said in (
        ("missing.jsonl", (), "there is no file 'missing.jsonl'"),
        ("over.jsonl", (), "no report beside over.jsonl"),
        ("bare.csv", (), "let --output be CSV, too"),
        ("kept.jsonl", ("--columns", "a,text"), "no column 'text'"),
        ("all.jsonl", (), "no column 'text'"),
        ("old.jsonl", ("--runner", "DirectRunner"), "leave --runner"),
    ):
        result = run("tuesday.jsonl", "new.jsonl", "--changed-since", old, *more)
        assert result.code == 2
        assert said in result.err
        assert not (folder.path / "new.jsonl").exists()


def test_a_broken_output_leaves_everything_as_it_was(run, folder):
    facts_of(run("monday.jsonl", "old.jsonl", "--report", "monday.json"))
    path = folder.path / "old.jsonl"
    report = folder.path / "monday.json"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:7], lines[7][:9], *lines[8:], ""]))
    report.write_text(report.read_text())  # is newer
    before = folder.names()
    result = run("tuesday.jsonl", "new.jsonl", "--changed-since", "old.jsonl")
    assert result.code == 2
    assert "line 8" in result.err
    assert folder.names() == before


def test_an_output_is_brought_up_to_date_in_its_place(run, folder):
    facts_of(run("monday.jsonl", "out.jsonl", "--report", "out.json"))
    for _ in range(2):
        since = ("--changed-since", "out.jsonl", "--report", "out.json", "--resume")
        facts = facts_of(run("tuesday.jsonl", "out.jsonl", *since))
    assert facts["from_cache"] == len(CHANGED)
    facts_of(run("tuesday.jsonl", "whole.jsonl"))
    assert folder.rows("out.jsonl") == folder.rows("whole.jsonl")
    assert not [name for name in folder.names() if "headrace" in name]
