"""``headrace run --fallback``: another handler for the rows that the first one's model could not do."""

from __future__ import annotations

import pytest

ROWS = [{"a": 1, "b": 2}, {"a": "x", "b": 4}, {"a": 5, "b": 6}, {"a": "y", "b": 8}]


@pytest.fixture
def run(folder, headrace, handlers):
    """Runs over two good rows and two bad ones, in between."""
    folder.write("in.jsonl", ROWS)

    def call(handler, fallback, *arguments):
        named = ("--handler", f"{handlers}:{handler}", "--fallback", f"{handlers}:{fallback}")
        return headrace("run", "in.jsonl", *named, "--output", "p.jsonl", *arguments)

    return call


@pytest.mark.parametrize(
    "more",
    [(), ("--isolate",), ("--resume",), pytest.param(("--runner", "FnApiRunner"), marks=pytest.mark.large)],
    ids=str,
)
def test_rows_that_fail_are_answered_by_the_fallback(folder, run, more):
    result = run("Add", "size", "--fallback-arg", "max_batch_size=1", *more)
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [3, 1, 11, 1]
    assert (result.summary["by the fallback"], result.summary["dead letters"]) == ("2", "0")


def test_rows_go_to_the_model_one_by_one_although_it_takes_columns(folder, run):
    folder.write("in.jsonl", [{"a": 1.5}, {"a": 2}])
    assert run("InColumns", "size").code == 0
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [3.0, 4.0]


def test_rows_that_both_fail_are_dead_letters(folder, run):
    result = run("Add", "Add", "--fallback-arg", "plus=1")
    assert result.code == 0
    letters = folder.rows("p.dead-letters.jsonl")
    assert [letter["row"]["a"] for letter in letters] == ["x", "y"]
    assert {letter["error_type"] for letter in letters} == {"headrace.core.errors.FallbackError"}
    assert "the fallback failed, too: TypeError" in letters[0]["message"]
    assert "by the fallback" not in result.summary


def test_fallback_takes_a_model_of_its_own(folder, run, handlers):
    result = run("late", "late", "--model", "first", "--fallback-model", "second")
    assert result.code == 0
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == ["first"] * 2
    assert result.summary["dead letters"] == "2"


def test_mistakes_name_the_options_of_the_fallback(folder, headrace, run, handlers):
    assert "--fallback: " in run("Add", "late").error
    assert "needs --fallback-model" in run("Add", "late").error
    assert "--fallback-arg plus=VALUE" in run("Add", "Add", "--fallback-arg", "pluss=1").error
    assert "--fallback-arg: " in run("Add", "late", "--fallback-arg", "model=1").error
    lone = headrace("run", "in.jsonl", "--handler", f"{handlers}:Add", "--output", "p.jsonl", "--fallback-model", "x")
    assert "go with --fallback" in lone.error


def test_resumed_run_needs_the_same_fallback(run):
    refused = ("--resume", "--threshold", "0")
    assert run("Add", "Add", *refused).code == 3
    assert "--fallback" in run("Add", "size", *refused).error
