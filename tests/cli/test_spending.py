"""Prices and budgets on the command line; what was spent is shown, and a run that ends with its budget goes on."""

from __future__ import annotations

import pytest

METERED = '''
import headrace


class Asks(headrace.RemoteModelHandler):
    """A request has a million input tokens."""

    def __init__(self, model="m"):
        super().__init__()
        self.model = model

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        with open("asked", "a") as log:
            log.writelines(f"{one}\\n" for one in batch)
        headrace.report_usage(self.model, input_tokens=1_000_000, output_tokens=1000)
        if self.model == "breaks" and 13 in batch:
            raise ConnectionResetError("gone")
        return [2 * one for one in batch]

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}
'''
ROWS = 60
ARGUMENTS = ("--columns", "n", "--output", "out.jsonl", "--no-progress")


@pytest.fixture
def run(headrace, own):
    """Runs the rows."""
    own.write("metered_rows.py", METERED)
    own.write("in.jsonl", [{"n": n} for n in range(ROWS)])
    return lambda *more: headrace("run", "in.jsonl", "--handler", "metered_rows:Asks", *ARGUMENTS, *more)


def asked(folder):
    path = folder.path / "asked"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def predictions(folder):
    return [(row["n"], row["prediction"]) for row in folder.rows("out.jsonl")]


EVERYTHING = [(n, 2 * n) for n in range(ROWS)]


def test_summary_has_what_was_spent(run):
    summary = run("--price", "m=1,2,0.5").summary
    assert summary["billed requests"] == "60"
    assert summary["tokens"] == "60,000,000 in, 60,000 out"
    assert summary["cost"] == "90.12"


def test_budget_ends_the_run_which_resume_takes_up(run, folder):
    options = ("--resume", "--price", "m=1,0", "--budget", "20")
    first = run(*options)
    assert first.code == 4
    assert "the budget of 20 is spent" in first.error
    assert "rows are done and kept; the same command goes on from there" in first.error
    assert 20 <= len(asked(folder)) < ROWS
    assert not (folder.path / "out.jsonl").exists()
    while (result := run(*options)).code == 4:
        pass
    assert result.code == 0
    assert predictions(folder) == EVERYTHING
    assert sorted(map(int, asked(folder))) == list(range(ROWS))


def test_budget_ends_the_run_which_a_cache_takes_up(run, folder):
    options = ("--cache", "cache", "--budget-tokens", "20000000")
    first = run(*options)
    assert first.code == 4
    assert "Nothing was written; the same command goes on from the cache" in first.error
    while (result := run(*options)).code == 4:
        pass
    assert predictions(folder) == EVERYTHING
    assert sorted(map(int, asked(folder))) == list(range(ROWS))
    assert result.summary["from the cache"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--price", "m"], "--price takes MODEL=INPUT,OUTPUT"),
        (["--price", "m=1"], "--price takes MODEL=INPUT,OUTPUT"),
        (["--price", "m=a,b"], "--price takes MODEL=INPUT,OUTPUT"),
        (["--price", "m=1,-1"], "at least 0"),
        (["--budget", "5", "--resume"], "--budget needs --price MODEL=INPUT,OUTPUT"),
        (["--budget-per-row", "5"], "--budget-per-row needs --price MODEL=INPUT,OUTPUT"),
        (["--budget", "-5", "--price", "m=1,1", "--resume"], "positive"),
        (["--budget", "5", "--price", "m=1,1"], "go with --resume or --cache"),
        (["--budget-tokens", "5"], "go with --resume or --cache"),
        (["--cache", "s3://bucket/cache"], "path of a file"),
    ],
)
def test_options_that_are_wrong_are_one_error(run, folder, options, said):
    result = run(*options)
    assert result.code == 2
    assert said in result.error
    assert asked(folder) == []


def test_row_that_has_cost_too_much_is_a_dead_letter(run, folder):
    options = ("--price", "breaks=1,0", "--budget-per-row", "0.5", "--dead-letters", "dead.jsonl", "--threshold", "0.1")
    assert run("--handler-arg", "model=breaks", *options).code == 0
    assert predictions(folder) == EVERYTHING[:13] + EVERYTHING[14:]
    (letter,) = folder.rows("dead.jsonl")
    assert letter["message"].startswith("its requests have cost 1, and max_cost_per_row is 0.5, so none is sent")
    assert asked(folder).count("13") == 1


def test_cache_is_for_another_run_too(run, folder):
    assert run("--cache", "cache").code == 0
    result = run("--cache", "cache", "--keep", "")
    assert result.summary["from the cache"] == "60"
    assert len(asked(folder)) == ROWS
    assert [row["prediction"] for row in folder.rows("out.jsonl")] == [2 * n for n in range(ROWS)]


def test_model_without_a_price_ends_the_run(run):
    result = run("--resume", "--budget", "5", "--price", "other=1,1")
    assert result.code == 4
    assert "no price for 'm'; give it with --price MODEL=INPUT,OUTPUT. (1 row is done and kept; " in result.error
