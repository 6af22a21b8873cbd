"""``headrace quote``, the options that it recommends, and a run that keeps to it."""

import io
import json
import math
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest

import headrace as package
from headrace.cli.main import main
from headrace.cli.words import changed, parsed, plain, table_of, toml_of, words_of
from headrace.core.errors import ConfigurationError
from waiting import wait_until

WAITS = '''
import logging
import os
import time

import headrace


class Waits(headrace.ModelHandler):
    """Never has a model; notes its process."""

    def load_model(self):
        logging.getLogger("waits").warning("it waits for ever")
        with open("process", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)

    def run_inference(self, batch, model, inference_args=None):
        return batch
'''


class Here:
    """Stands in for ``Popen``: a command of Headrace in this process, which has imported what it needs."""

    def __init__(self, command, stdin, stdout, stderr):
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            self.code = main(json.load(stdin))
        stdout.write(out.getvalue().encode())
        stderr.write(errors.getvalue().encode())

    def wait(self, timeout=None):
        return self.code

    def kill(self):
        """It has ended."""


@pytest.fixture
def here(monkeypatch):
    """Pilots run in this process."""
    popen = SimpleNamespace(Popen=Here, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("headrace.jobs.quote.subprocess", popen)


@pytest.fixture
def quote(headrace, folder, handlers):
    folder.write("in.jsonl", [{"a": number, "b": 1} for number in range(200)])
    return lambda *more, name="Add": headrace(
        "quote", "in.jsonl", "--handler", f"{handlers}:{name}", "--pilot", "50", *more
    )


@pytest.fixture
def paid(folder, handlers):
    folder.write("in.jsonl", [{"n": number} for number in range(100)])
    return f"{handlers}:Asks"


def test_a_quote_is_a_forecast_for_the_input(quote, folder):
    result = quote("--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert (found["rows"], found["rows_are_exact"], found["pilot_rows"]) == (200, True, 200)
    assert 0 < found["seconds_low"] < found["seconds"] < found["seconds_high"]
    assert found["memory_bytes"] > 1e7
    assert found["money"] is found["tokens_in"] is None
    assert (found["alternatives"], found["recommended"]) == ([], "")
    assert folder.names() == ["in.jsonl"]


def test_alternatives_are_piloted_and_the_best_is_written(here, quote, folder, headrace):
    folder.write("in.jsonl", [{"a": number, "b": 1} for number in range(20)])
    alternatives = ("--alternative", "--workers 2", "--alternative", "--handler-arg plus=3")
    result = quote(*alternatives, "--config-out", "best.toml", "--deadline", "1h")
    assert result.code == 0
    assert result.summary["machines"] == "1 like this one for 60.0 min"
    lines = result.out.splitlines()
    assert any("--handler-arg plus=3: " in line and "may differ" in line for line in lines)
    assert any("--workers 2: " in line and "may differ" not in line for line in lines)
    assert "[run]" in (folder.path / "best.toml").read_text()
    done = headrace("run", "in.jsonl", "--config", "best.toml", "--output", "out.jsonl")
    assert done.code == 0
    assert [row["prediction"] for row in folder.rows("out.jsonl")] == [number + 1 for number in range(20)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--config-out in.jsonl", "is there already"),
        ("--config-out gone/h.toml", "there is no folder"),
        ("--runner FlinkRunner", "a quote is of this machine"),
        ("--batch-directory b", "a Batch API may take a day"),
        ("--changed-since o.jsonl", "a quote is of all rows"),
        ("--pilot 61", "60"),
        ("--deadline soon", "is no time"),
        ("--deadline 0h", "is no time"),
        ("--budget-tokens 9", "a budget goes with --cache"),
        ("--columns c", "c"),
        ("--alternative '--worker 2'", "did you mean '--workers'?"),
    ],
)
def test_what_is_wrong_is_said_with_its_cure(here, quote, more, said):
    result = quote(*shlex.split(more))
    assert result.code == 2
    assert said in result.err


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("Broken", [{"a": 1}], "no such weights"),
        ("Vectors", [{"a": "x"}] * 5, "every row of the pilot failed: ValueError"),
    ],
)
def test_a_pilot_that_fails_ends_the_quote_with_its_error(here, quote, folder, name, rows, said):
    folder.write("in.jsonl", rows)
    result = quote(name=name)
    assert (result.code, said in result.err) == (1, True)


def test_money_is_quoted_and_what_was_paid_is_kept(here, paid, headrace, folder):
    options = ("--handler", paid, "--price", "m=1,10", "--cache", "cache.sqlite")
    result = headrace("quote", "in.jsonl", *options, "--json", "--pilot", "50")
    found = json.loads(result.out)
    asked = (folder.path / "asked").read_text().split()
    money = (len(asked) * 1000 + 10 * sum(map(int, asked))) / 1e6
    assert found["rows"] == len(asked) == len(set(asked)) == 100
    assert found["money"] == pytest.approx(money) == pytest.approx(found["pilot_money"])
    assert found["money_low"] < money < found["money_high"]
    assert (found["tokens_in"], found["tokens_in_low"], found["tokens_in_high"]) == (100_000, 100_000, 100_000)
    folder.write("quote.json", result.out)
    run = headrace("run", "in.jsonl", *options, "--output", "out.jsonl", "--quote", "quote.json", "--report", "r.json")
    assert run.code == 0
    assert run.summary["from the cache"] == "100"
    assert json.loads((folder.path / "r.json").read_text())["quote"] == found
    assert (folder.path / "asked").read_text().split() == asked


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="where the arguments of processes are in /proc")


@LINUX
def test_alternatives_have_pilots_of_their_own_and_no_secrets(here, paid, headrace):
    options = ("in.jsonl", "--handler", paid, "--price", "m=1,0", "--json", "--pilot", "50", "--limit", "5")
    keys = (f"--handler-arg api_key=sk-{key}" for key in (1, 2, 1))
    others = ("--handler-arg tokens=3000 --batch-directory b", "--handler gone:make", *keys)
    alternatives = [word for other in others for word in ("--alternative", other)]
    result = headrace("quote", *options, *alternatives)
    found = json.loads(result.out)["alternatives"]
    prices = [0.0075, None, 0.005, 0.005]
    assert [one.get("money") for one in found] == [price and pytest.approx(price) for price in prices]
    assert (found[0]["seconds"], found[0]["seconds_high"]) == (None, 24 * 3600)
    assert "gone" in found[1]["error"]
    assert "sk-" not in result.out


@LINUX
def test_python_quotes_too_and_nobody_sees_a_key_among_the_arguments_of_processes(paid, folder):
    found = package.quote(
        "in.jsonl",
        handler=paid,
        handler_arg={"api_key": "sk-12345678", "tokens": 9},
        alternative="--handler-arg api_key=sk-87654321",
        pilot=50,
        limit=3,
        no_progress=True,
    )
    assert (found["rows"], found["options"]) == (3, {"handler": paid, "handler-arg": "tokens=9"})
    seen = (folder.path / "seen").read_text()
    assert seen.count("sk-") == 6, "each handler has its key"
    assert "1234" not in seen
    assert "8765" not in seen
    assert "sk-" not in json.dumps(found)
    with pytest.raises(ConfigurationError, match="gone"):
        package.quote("gone.jsonl", handler=paid)


def test_a_pilot_keeps_the_budget_and_is_of_the_rows_that_the_run_reads(here, paid, headrace, folder):
    options = ("--handler", paid, "--price", "m=1,10", "--cache", "cache.sqlite", "--json", "--pilot", "50")
    found = json.loads(headrace("quote", "in.jsonl", *options, "--limit", "5", "--alternative", "--workers 1").out)
    assert found["rows"] == 5
    assert sorted(map(int, (folder.path / "asked").read_text().split())) == list(range(5))
    folder.write("in.jsonl", [{"n": number} for number in range(1000, 9000)])
    found = json.loads(headrace("quote", "in.jsonl", *options, "--budget", "1").out)
    assert 0 < found["pilot_money"] < 10
    assert found["money"] > 100


@pytest.fixture
def once_it_waits(folder, monkeypatch):
    """What it is called with is raised where the next process is waited for, once that one's model waits for ever."""
    waited, errors = subprocess.Popen.wait, []

    def wait(process, timeout=None):
        if not errors:
            return waited(process, timeout)
        assert wait_until((folder.path / "process").exists)
        raise errors.pop()

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    return errors.append


@pytest.fixture
def waits(own):
    own.write("waits.py", WAITS)
    own.write("in.jsonl", [{"n": 1}])
    return "waits:Waits"


def test_a_pilot_in_which_no_row_is_done_says_why(waits, headrace, once_it_waits):
    once_it_waits(subprocess.TimeoutExpired("the pilot", 50))
    result = headrace("quote", "in.jsonl", "--handler", waits, "--pilot", "50")
    assert result.code == 1
    assert "no row was done within 50 s" in result.err
    assert "it waits for ever" in result.err


def test_a_quote_that_is_interrupted_from_python_leaves_nothing(waits, folder, monkeypatch, once_it_waits):
    (folder.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder.path / "tmp"))
    once_it_waits(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        package.quote("in.jsonl", handler=waits, pilot=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder.path / "process").read_text()), 0)
    assert not list((folder.path / "tmp").glob("headrace-*"))


def test_the_quote_is_the_runs_budget(paid, run, mistake, folder):
    found = {"money_high": 0.01, "tokens_in_high": 1, "tokens_out_high": 1, "alternatives": []}
    folder.write("quote.json", json.dumps(found))
    options = ("--price", "m=1,10", "--cache", "cache.sqlite", "--quote", "quote.json")
    result = run(*options, handler=paid)
    assert result.code == 4
    assert "the budget of 0.01 is spent" in result.err
    for strange in ({"money_high": "1"}, {"money_high": math.nan}, {"alternatives": [5]}):
        folder.write("quote.json", json.dumps({**found, **strange}))
        assert "is not what headrace quote --json prints" in mistake(*options, handler=paid)
    folder.write("quote.json", "[]")
    assert "is not what headrace quote --json prints" in mistake(*options, handler=paid)


def test_a_run_of_an_alternative_has_its_figures(run, folder, handlers):
    folder.write("in.jsonl", [{"a": 1}])
    base, other = {"handler": f"{handlers}:Add"}, {"handler": f"{handlers}:Add", "max-batch-size": "7"}
    nothing = dict.fromkeys(("money_high", "tokens_in_high", "tokens_out_high"))
    entries = [{"seconds": seconds, "options": options, **nothing} for seconds, options in ((1, base), (2, other))]
    folder.write("quote.json", json.dumps({**entries[0], "alternatives": entries[1:]}))
    quoted = ("--quote", "quote.json", "--json")
    assert json.loads(run(*quoted).out)["quote"]["seconds"] == 1
    assert json.loads(run(*quoted, "--max-batch-size", "7").out)["quote"]["seconds"] == 2
    assert "of a run with other options" in run(*quoted, "--max-batch-size", "8").err


def test_a_run_that_stops_reading_has_what_it_read(run, folder):
    folder.write("in.jsonl", [{"a": 1}] * 10)
    assert run("--stop-after", "0").code == 0
    assert len(folder.rows("p.jsonl")) == 10  # it reads for a second at least


def run_args(*words):
    return plain(parsed([*words, "INPUT"]))


OPTIONS = (
    *("--handler", "h:make", "--handler-arg", "a=1", "--handler-arg", "b=[2, 3]", "--columns", "x,'y z'", "--explode"),
    *("--fallback", "one", "--fallback-model", "m1", "--fallback", "two", "--fallback-arg", "c=1", "--workers", "auto"),
    *("--price", "m=1,2", "--isolate", "--max-batch-size", "8", "--placement", "machine"),
)


def test_options_as_words_are_the_same_options():
    args = run_args(*OPTIONS)
    assert run_args(*words_of(args)) == args
    assert words_of(run_args("--fallback-model", "m", "--fallback", "one")) == [
        *("--fallback", "one", "--fallback-model", "m")
    ]


def test_an_alternative_replaces_options():
    one = changed(
        run_args(*OPTIONS), "--workers 2 --handler-arg a=9 --columns z --no-isolate --fallback three --price n=3,4"
    )
    assert (one.workers, one.isolate, one.columns, one.explode) == (2, False, ["z"], True)
    assert one.handler_args == ["b=[2, 3]", "a=9"]
    assert one.prices == ["m=1,2", "n=3,4"]
    assert (one.fallback, one.fallback_model, one.fallback_args) == (["three"], None, None)


def test_a_file_of_options_has_no_secrets_and_paths_from_its_folder(folder):
    folder.write("models/m.pkl", "")
    (folder.path / "conf").mkdir()
    arguments = ("--handler-arg", "api_key=sk-1", "--handler-arg", "n=2")
    args = run_args("--handler", "h:make", *arguments, "--model", "models/m.pkl", "--cache", "c.db")
    text = toml_of(args, "conf/h.toml")
    assert text == '[run]\nhandler = "h:make"\nmodel = "../models/m.pkl"\nhandler-arg = "n=2"\ncache = "../c.db"\n'
    assert "sk-1" not in json.dumps(table_of(args))
    secret = table_of(run_args("--url", "https://me:pw@host", "--prompt", "Does it need authorization? {text}"))
    assert secret == {"prompt": "Does it need authorization? {text}"}
    with pytest.raises(ConfigurationError, match="several"):
        toml_of(run_args("--fallback", "one", "--fallback", "two"), "h.toml")
