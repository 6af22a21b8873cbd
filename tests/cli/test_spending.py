"""Prices and budgets on the command line; what was spent is shown, and a run that ends with its budget goes on."""

import json
from functools import partial

import pytest

ROWS = 60


@pytest.fixture
def run(folder, run):
    """Requests with a million input tokens each."""
    folder.write("in.jsonl", [{"n": n} for n in range(ROWS)])
    return partial(run, "--handler-arg", "tokens=1000000", "--no-progress", handler="Asks")


def asked(folder):
    return sorted(map(int, (folder.path / "asked").read_text().split()))


def predictions(folder):
    return [(row["n"], row["prediction"]) for row in folder.rows("p.jsonl")]


EVERYTHING = [(n, 2 * n) for n in range(ROWS)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--resume", "--price", "m=1,0", "--budget", "20"),
            "rows are done and kept; the same command goes on from there",
        ),
        (
            ("--cache", "cache", "--budget-tokens", "20000000"),
            "Nothing was written; the same command goes on from the cache",
        ),
    ],
    ids=["resume", "cache"],
)
def test_budget_ends_the_run_which_the_same_command_takes_up(run, folder, options, said):
    first = run(*options)
    assert first.code == 4
    assert said in first.error
    assert 20 <= len(asked(folder)) < ROWS
    assert not (folder.path / "p.jsonl").exists()
    while (result := run(*options)).code == 4:
        pass
    assert result.code == 0
    assert predictions(folder) == EVERYTHING
    assert asked(folder) == list(range(ROWS))


def test_row_that_has_cost_too_much_is_a_dead_letter(run, folder):
    options = ("--price", "breaks=1,0", "--budget-per-row", "0.5", "--dead-letters", "dead.jsonl", "--threshold", "0.1")
    assert run("--handler-arg", "model=breaks", *options).code == 0
    assert predictions(folder) == EVERYTHING[:13] + EVERYTHING[14:]
    (letter,) = folder.rows("dead.jsonl")
    assert letter["message"].startswith("its requests have cost 1, and max_cost_per_row is 0.5, so none is sent")
    assert asked(folder).count(13) == 1


def test_summary_has_what_was_spent_and_a_cache_is_for_another_run_too(run, folder):
    first = run("--cache", "cache", "--price", "m=1,2,0.5").summary
    spent = (first["billed requests"], first["tokens"], first["cost"])
    assert spent == ("60", "60,000,000 in, 1,770 out", "90.0035")
    assert run("--cache", "cache", "--keep", "").summary["from the cache"] == "60"
    assert len(asked(folder)) == ROWS
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [2 * n for n in range(ROWS)]
    found = json.loads(run("--cache", "other", "--price", "m=1,0", "--json").out)
    used = {"requests": ROWS, "input_tokens": ROWS * 1_000_000, "output_tokens": 1770, "cost": 60.0}
    assert (found["usage"], found["cost"]) == ({"m": used}, 60.0)


def test_model_without_a_price_ends_the_run(run):
    result = run("--resume", "--budget", "5", "--price", "other=1,1")
    assert result.code == 4
    assert "no price for 'm'; give it with --price MODEL=INPUT,OUTPUT. (1 row is done and kept; " in result.error
