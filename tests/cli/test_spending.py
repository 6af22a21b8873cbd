"""Prices and budgets on the command line; what was spent is shown, and a run that ends with its budget goes on."""

from __future__ import annotations

import pytest

from headrace.cli.spending import progress_figures, summary_lines
from headrace.core.events import UsageReported
from headrace.metrics.totals import Totals

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
        return [2 * one for one in batch]

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}
'''
ROWS = 60
ARGUMENTS = ("--columns", "n", "--output", "out.jsonl", "--no-progress")


@pytest.fixture
def run(headrace, folder, tmp_path_factory, monkeypatch, request):
    """Runs the rows."""
    code = tmp_path_factory.mktemp("code")
    name = f"metered_{code.name}"
    (code / f"{name}.py").write_text(METERED)
    monkeypatch.syspath_prepend(str(code))
    folder.write("in.jsonl", [{"n": n} for n in range(ROWS)])
    return lambda *more: headrace("run", "in.jsonl", "--handler", f"{name}:Asks", *ARGUMENTS, *more)


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


def test_cache_is_for_another_run_too(run, folder):
    assert run("--cache", "cache").code == 0
    result = run("--cache", "cache", "--keep", "")
    assert result.summary["from the cache"] == "60"
    assert len(asked(folder)) == ROWS
    assert [row["prediction"] for row in folder.rows("out.jsonl")] == [2 * n for n in range(ROWS)]


def test_settings_have_prices_and_a_cache(run, folder):
    folder.write("headrace.toml", '[run]\ncache = "cache"\nprice = {m = [1, 2]}\nbudget = 1000\n')
    assert run().summary["cost"] == "60.12"
    assert (folder.path / "cache").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--price", "m"], "--price takes MODEL=INPUT,OUTPUT"),
        (["--price", "m=1"], "--price takes MODEL=INPUT,OUTPUT"),
        (["--price", "m=a,b"], "--price takes MODEL=INPUT,OUTPUT"),
        (["--price", "m=1,-1"], "at least 0"),
        (["--budget", "5", "--resume"], "--budget needs --price MODEL=INPUT,OUTPUT"),
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


def test_model_without_a_price_ends_the_run(run):
    result = run("--resume", "--budget", "5", "--price", "other=1,1")
    assert result.code == 4
    assert "no price for 'm'; give it with --price MODEL=INPUT,OUTPUT. (1 row is done and kept; " in result.error


def test_progress_shows_tokens_and_money_if_there_are_any():
    assert progress_figures(Totals(), 0.0) == []
    totals = Totals(cached=1200, usage={"m": UsageReported("m", 10, 5, cost=1.25), "n": UsageReported("n", 1, 1)})
    assert progress_figures(totals, 1234.5) == [
        ("1,200 from the cache", 5),
        ("1,234 tokens/s", 5),
        ("cost 1.25", 2),
    ]


def test_summary_of_several_models_has_lines_for_each():
    totals = Totals(usage={"b": UsageReported("b", 10, 5, 2, 1.25), "a": UsageReported("a", 1000, 1)})
    assert list(summary_lines(totals)) == [
        ("billed requests", "3"),
        ("tokens", "1,010 in, 6 out"),
        ("cost", "1.25"),
        ("  a", "1 requests, 1,000 in, 1 out"),
        ("  b", "2 requests, 10 in, 5 out, cost 1.25"),
    ]


def test_requests_of_an_engine_on_this_machine_are_not_billed():
    totals = Totals()
    for _ in range(2):
        totals.on_event(UsageReported("m", 10, 5, seconds=1.0))
    assert list(summary_lines(totals)) == [("tokens", "20 in, 10 out")]
