"""``headrace retry``: dead letters of ``headrace run`` go through a model once more."""

import json
import os

import pytest

ROWS = [{"a": 1, "b": 2}, {"a": "x", "b": 3}, {"a": 4, "b": 5}, {"b": 6}]
GOOD = [{"a": 1, "b": 2, "prediction": 3}, {"a": 4, "b": 5, "prediction": 9}]


@pytest.fixture
def call(headrace, handlers):
    """Runs a command with one of the test's own handlers."""
    return lambda name, handler, *arguments: headrace(name, "--handler", f"{handlers}:{handler}", *arguments)


@pytest.fixture
def first_run(folder, call):
    """A run of which two rows fail, one in inference and one before; its dead letters go where they are asked for."""

    def run(*arguments):
        folder.write("in.jsonl", ROWS)
        sizes = ("--min-batch-size", 4, "--max-batch-size", 4, "--columns", "a,b")
        result = call("run", "Add", "in.jsonl", "--output", "p.jsonl", *sizes, *arguments)
        assert (result.code, result.err) == (0, "")
        assert folder.rows("p.jsonl") == GOOD

    return run


@pytest.mark.parametrize("name", ["p.dead-letters.jsonl", "p.dead.parquet", "elsewhere/p.jsonl"])
def test_failed_rows_are_retried_and_attempts_add_up(folder, call, first_run, name):
    first_run("--dead-letters", name)
    letters = {letter["stage"]: letter for letter in folder.rows(name)}
    assert {stage: letter["attempts"] for stage, letter in letters.items()} == {"preprocessing": 1, "inference": 3}
    assert all(letter["model_id"] is None for letter in letters.values())
    result = call("retry", "Add", name, "--output", "q.jsonl", "--dead-letters", "r/q.parquet", "--columns", "a,b")
    assert result.code == 3
    again = {json.loads(letter["row"])["b"]: letter for letter in folder.rows("r/q.failed.parquet")}
    assert {b: letter["attempts"] for b, letter in again.items()} == {3: 4, 6: 2}
    assert folder.names() == sorted(["in.jsonl", "p.jsonl", name, "r/q.failed.parquet"])


def test_rows_succeed_with_a_handler_that_can_predict_them(folder, call, first_run):
    first_run()
    result = call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl")
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "2", "0")
    found = sorted(folder.rows("q.jsonl"), key=lambda row: row["b"])
    assert [{name: row[name] for name in row if name != "prediction"} for row in found] == [ROWS[1], ROWS[3]]


@pytest.mark.parametrize("backwards", [False, True])
def test_columns_are_those_of_all_dead_letters(folder, call, first_run, backwards):
    """The one whose row lacks a column may come first."""
    first_run()
    folder.write("letters.jsonl", sorted(folder.rows("p.dead-letters.jsonl"), key=str, reverse=backwards))
    result = call("retry", "Add", "letters.jsonl", "--output", "q.jsonl", "--columns", "a,b")
    assert (result.code, len(folder.rows("q.dead-letters.failed.jsonl"))) == (3, 2)


def test_an_isolated_model_adds_to_the_attempts(folder, call, first_run):
    first_run()
    result = call("retry", "Add", "p.dead-letters.jsonl", "--output", "q.jsonl", "--columns", "a,b", "--isolate")
    assert result.code == 3
    attempts = {letter["row"]["b"]: letter["attempts"] for letter in folder.rows("q.dead-letters.failed.jsonl")}
    assert attempts == {3: 4, 6: 2}


def test_lines_that_could_not_be_read_stay_dead(folder, call):
    folder.write("in.jsonl", '{"a": 1}\n?\n')
    assert call("run", "Add", "in.jsonl", "--output", "p.jsonl").code == 0
    (before,) = folder.rows("p.dead-letters.jsonl")
    result = call("retry", "Add", "p.dead-letters.jsonl", "--output", "q.jsonl")
    assert result.error.startswith("every row failed (1 of 1); ")
    (after,) = folder.rows("q.dead-letters.failed.jsonl")
    assert {name: after[name] for name in ("row", "stage", "message")} == {
        name: before[name] for name in ("row", "stage", "message")
    }
    assert (before["attempts"], after["attempts"]) == (1, 2)


def test_an_empty_file_of_dead_letters_gives_no_rows(folder, call):
    for name in ("none.jsonl", "none.parquet"):
        folder.write("in.jsonl", [{"a": 1}])
        assert call("run", "Add", "in.jsonl", "--output", "p.jsonl", "--dead-letters", name).code == 0
        result = call("retry", "Add", name, "--output", "q.jsonl")
        assert (result.code, result.summary["rows"]) == (0, "0")
        assert result.err == "warning: there are no rows in the input.\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["in.jsonl", "--output", "q.jsonl"],
            "headrace retry takes the dead letters of an earlier run, and headrace run takes rows",
        ),
        ([os.devnull, "--output", "q.jsonl"], "is a pipe; write the dead letters that come through it to a file"),
        (["p.dead-letters.jsonl", "--output", "p.jsonl"], "is among the inputs and would be overwritten"),
        (["p.dead-letters.jsonl", "--output", "q.jsonl", "--dead-letters", "q.jsonl"], "are the same file"),
        (["p.dead-letters.jsonl", "--output", "q.jsonl", "--dead-letters", "q.csv"], "--dead-letters must end in"),
        (["p.dead-letters.jsonl", "--output", "q.jsonl", "--columns", "c"], "there is no column 'c'"),
        (["--output", "q.jsonl", "--direct_num_workers=1"], "no DEAD_LETTERS is given"),
    ],
)
def test_mistakes_are_named_in_one_line(folder, call, first_run, arguments, complaint):
    first_run()
    result = call("retry", "Add", *arguments)
    assert result.code == 2
    assert complaint in result.error
    assert folder.rows("p.jsonl") == GOOD
