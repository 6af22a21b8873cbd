"""``headrace run`` from files to files, in every format, with every kind of handler."""

import json

import pytest

ROWS = [{"a": n, "b": 10 * n, "name": f"row {n}"} for n in range(5)]
CSV = "a,b,name\n" + "".join(f"{row['a']},{row['b']},{row['name']}\n" for row in ROWS)


@pytest.mark.parametrize(("name", "content"), [("in.jsonl", ROWS), ("in.csv", CSV), ("in.parquet", ROWS)])
@pytest.mark.parametrize("output", ["out/p.jsonl", "out/p.parquet"])
def test_every_format_is_read_and_written(folder, run, name, content, output):
    folder.write(name, content)
    result = run("--columns", "a,b", inputs=[name], output=("--output", output))
    assert (result.code, result.err) == (0, "")
    assert folder.rows(output) == [{**row, "prediction": 11 * row["a"]} for row in ROWS]
    assert folder.names() == sorted([name, output])


def test_the_summary_counts_all_rows(folder, run):
    rows = [*ROWS, {**ROWS[0], "a": "x"}]
    folder.write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    result = run("--columns", "a,b", "--verbose", "--min-batch-size", 2, "--max-batch-size", 2)
    assert result.code == 0
    figures = {
        "rows": "7",
        "predictions": "5",
        "dead letters": "2",
        "inference TypeError": "1",
        "reading json.decoder.JSONDecodeError": "1",
        "batches": "3",
        "mean batch size": "1.7",
        "written": str(folder.path / "p.jsonl"),
    }
    assert figures.items() <= result.summary.items()
    assert {"seconds", "of these", "model load seconds"} <= set(result.summary)


def test_columns_are_selected_and_kept_by_glob(folder, run):
    folder.write("in.jsonl", [{"x_2": 1, "id": 7, "x_1": 2, "y": 100}])
    assert run("--columns", "x_*", "--keep", "id").code == 0
    assert folder.rows("p.jsonl") == [{"id": 7, "prediction": 3}]
    assert run("--columns", "y", "--columns", "x_1", "--keep", "").code == 0
    assert folder.rows("p.jsonl") == [{"prediction": 102}]


def test_arguments_reach_the_handler_and_the_model(folder, run):
    folder.write("in.jsonl", [{"a": 1}])
    assert run("--handler-arg", "plus=0.5", "--inference-arg", "times=4").code == 0
    assert folder.rows("p.jsonl") == [{"a": 1, "prediction": 6.0}]
    assert run("--model", "here/it.is", handler="late").code == 0
    assert folder.rows("p.jsonl") == [{"a": 1, "prediction": "here/it.is"}]


def test_a_traceback_that_letters_have_in_common_is_written_three_times(folder, run):
    folder.write("in.jsonl", [{"a": 1}, *[{"a": f"x{number}"} for number in range(9)], {"b": 1}])
    assert run("--columns", "a", handler="Vectors").code == 0
    letters = folder.rows("p.dead-letters.jsonl")
    assert [letter["traceback"] is None for letter in letters] == [False] * 3 + [True] * 6 + [False]
    assert letters[0]["traceback"].endswith(f"ValueError: {letters[0]['message']}\n")
    assert "'x8'" in letters[8]["message"]
