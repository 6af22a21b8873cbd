"""``headrace run`` from files to files, in every format, with every kind of handler."""

import json

import pytest

ROWS = [{"a": n, "b": 10 * n, "name": f"row {n}"} for n in range(5)]
CSV = "a,b,name\n" + "".join(f"{row['a']},{row['b']},{row['name']}\n" for row in ROWS)

SIZE_2 = ("--min-batch-size", 2, "--max-batch-size", 2)


@pytest.fixture
def run(headrace, handlers):
    """Runs with one of the test's own handlers."""
    return lambda handler, *arguments: headrace("run", "--handler", f"{handlers}:{handler}", *arguments)


@pytest.mark.parametrize(("name", "content"), [("in.jsonl", ROWS), ("in.csv", CSV), ("in.parquet", ROWS)])
@pytest.mark.parametrize("output", ["out/p.jsonl", "out/p.parquet"])
def test_every_format_is_read_and_written(folder, run, name, content, output):
    folder.write(name, content)
    result = run("Add", name, "--columns", "a,b", "--output", output)
    assert (result.code, result.err) == (0, "")
    assert folder.rows(output) == [{**row, "prediction": 11 * row["a"]} for row in ROWS]
    assert folder.names() == sorted([name, output])


def test_the_summary_counts_all_rows(folder, run):
    rows = [*ROWS, {**ROWS[0], "a": "x"}]
    folder.write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    result = run("Add", "in.jsonl", "--columns", "a,b", "--output", "p.jsonl", "--verbose", *SIZE_2)
    assert result.code == 0
    names = [
        "rows",
        "predictions",
        "dead letters",
        "inference TypeError",
        "reading json.decoder.JSONDecodeError",
        "seconds",
    ]
    assert set(names) <= set(result.summary)
    figures = {name: result.summary[name] for name in ("rows", "predictions", "dead letters", "batches")}
    assert figures == {"rows": "7", "predictions": "5", "dead letters": "2", "batches": "3"}
    assert result.summary["mean batch size"] == "1.7"
    assert {"of these", "model load seconds"} <= set(result.summary)
    assert result.summary["written"] == str(folder.path / "p.jsonl")


def test_columns_are_selected_and_kept_by_glob(folder, run):
    folder.write("in.jsonl", [{"x_2": 1, "id": 7, "x_1": 2, "y": 100}])
    assert run("Add", "in.jsonl", "--columns", "x_*", "--keep", "id", "--output", "p.jsonl").code == 0
    assert folder.rows("p.jsonl") == [{"id": 7, "prediction": 3}]
    assert run("Add", "in.jsonl", "--columns", "y", "--columns", "x_1", "--keep", "", "--output", "p.jsonl").code == 0
    assert folder.rows("p.jsonl") == [{"prediction": 102}]


def test_a_handler_may_make_its_own_examples(folder, run):
    folder.write("in.jsonl", [{"a": 1, "b": "2.5"}, {"a": "smudge", "b": 0}, {"b": 3}])
    assert run("Vectors", "in.jsonl", "--columns", "b,a", "--output", "p.jsonl").code == 0
    (row,) = folder.rows("p.jsonl")
    assert row == {"a": 1, "b": "2.5", "prediction": {"twice": [5.0, 2.0], "size": 1}, "model_id": "v1"}
    smudged, lacking = folder.rows("p.dead-letters.jsonl")
    assert smudged["row"] == {"a": "smudge", "b": 0}
    assert (smudged["stage"], smudged["operation"], smudged["error_type"]) == ("preprocessing", 0, "ValueError")
    assert smudged["message"] == "could not convert string to float: 'smudge'"
    assert smudged["traceback"].startswith("Traceback")
    assert (lacking["row"], lacking["message"]) == ({"b": 3}, "the row has no column 'a'")


def test_arguments_reach_the_handler_and_the_model(folder, run):
    folder.write("in.jsonl", [{"a": 1}])
    assert run("Add", "in.jsonl", "--handler-arg", "plus=0.5", "--inference-arg", "times=4", "--output", "p.jsonl")
    assert folder.rows("p.jsonl") == [{"a": 1, "prediction": 6.0}]
    assert run("late", "in.jsonl", "--model", "here/it.is", "--output", "p.jsonl").code == 0
    assert folder.rows("p.jsonl") == [{"a": 1, "prediction": "here/it.is"}]


def test_a_traceback_that_letters_have_in_common_is_written_three_times(folder, run):
    folder.write("in.jsonl", [{"a": 1}, *[{"a": f"x{number}"} for number in range(9)], {"b": 1}])
    assert run("Vectors", "in.jsonl", "--columns", "a", "--output", "p.jsonl").code == 0
    letters = folder.rows("p.dead-letters.jsonl")
    assert [letter["traceback"] is None for letter in letters] == [False] * 3 + [True] * 6 + [False]
    assert letters[0]["traceback"].endswith(f"ValueError: {letters[0]['message']}\n")
    assert "'x8'" in letters[8]["message"]
