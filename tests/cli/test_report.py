"""``headrace run --report`` and ``headrace report``."""

from __future__ import annotations

import html
import json
import re
import shlex

import pytest

from full_disk import full_disk
from headrace.cli.options import RunArgs
from headrace.cli.prepare import budget_of
from headrace.cli.words import parsed, retry_options

pytest.importorskip("matplotlib")

ASKS = """
import headrace


class Asks(headrace.RemoteModelHandler):
    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        for row in batch:
            headrace.report_usage("m", input_tokens=row["a"], output_tokens=1)
            if row["a"] == 13:
                raise ValueError(13)
        return [row["a"] for row in batch]
"""


@pytest.fixture
def run(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, {"a": "secret-1"}, {"a": "secret-2"}, {"a": 2}])

    def call(*more, name="Add"):
        return headrace("run", "in.jsonl", "--output", "p.jsonl", "--handler", f"{handlers}:{name}", *more)

    return call


def test_a_report_has_the_runs_figures_and_no_values_of_rows(run, folder):
    assert run("--report", "run.html").code == 0
    page, figures = ((folder.path / f"run.{kind}").read_text() for kind in ("html", "json"))
    facts = json.loads(figures)
    assert (facts["rows"], facts["predictions"], facts["failures"]) == (4, 2, 2)
    assert sum(facts["timeline"]["rows"]) == 2
    assert set(facts["wall"]) == {"sampled_seconds", "busy_seconds"}
    assert "4 rows in = 4 predictions, dead letters and skipped rows." in page
    assert "secret" not in page + figures


def test_causes_without_messages_are_one_for_each_kind_of_error(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, *({"a": f"x{number}"} for number in range(9))])
    arguments = ("run", "in.jsonl", "--output", "p.jsonl", "--handler", f"{handlers}:Vectors", "--report", "r.json")
    assert headrace(*arguments).code == 0
    (cause,) = json.loads((folder.path / "r.json").read_text())["causes"]
    assert (cause["message"], cause["count"]) == ("", 9)


def test_messages_are_quoted_on_request(run, folder):
    assert run("--report", "run.json", "--report-messages").code == 0
    assert "unsupported operand" in (folder.path / "run.json").read_text()
    assert not (folder.path / "run.html").exists()


def test_a_run_that_fails_has_a_report_too(run, folder):
    assert run("--report", "run.html", name="Broken").code == 1
    facts = json.loads((folder.path / "run.json").read_text())
    assert (facts["exit_code"], facts["exit_reason"], facts["rows"]) == (1, "failed", None)
    assert "The run did not get to its end" in (folder.path / "run.html").read_text()


def test_pages_are_made_again_and_compared(run, headrace, folder):
    run("--report", "one.json")
    run("--report", "two.json")
    result = headrace("report", "two.json", "--compare", "one.json", "--output", "both.html")
    assert result.code == 0
    assert "2 dead letters" in result.out
    assert "Compared" in (folder.path / "both.html").read_text()
    assert headrace("report", "p.jsonl").code == 2


def test_more_workers_are_no_advice_where_the_model_computes_elsewhere(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, {"a": 2}])
    folder.write("asks.py", ASKS)
    arguments = ("run", "in.jsonl", "--output", "p.jsonl", "--report", "r.json", "--handler")
    for more, is_elsewhere in (
        ([f"{handlers}:Add"], False),
        ([f"{handlers}:Add", "--isolate"], True),
        (["asks:Asks"], True),
    ):
        assert headrace(*arguments, *more).code == 0
        assert json.loads((folder.path / "r.json").read_text())["keeps_one_worker"] is is_elsewhere


def test_the_command_for_dead_letters_works_as_pasted(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1}, {"a": "x"}, {"a": 2}])
    options = ("--handler", f"{handlers}:Add", "--inference-arg", "times=3", "--max-batch-size", "2", "--json")
    assert headrace("run", "in.jsonl", "--output", "an output.jsonl", *options, "--report", "r.html").code == 0
    commands = re.findall("<code>(headrace retry.*?)</code>", (folder.path / "r.html").read_text())
    command = shlex.split(html.unescape(commands[0]))
    letters = folder.path / "an output.dead-letters.jsonl"
    letters.write_text(letters.read_text().replace('"x"', "5"))  # the cause is mended
    assert headrace(*command[1:]).code == 0
    assert [row["prediction"] for row in folder.rows("an output.jsonl")] == [3, 15, 6]


def test_the_command_of_each_cause_retries_its_letters(folder, headrace, handlers):
    folder.write("in.jsonl", [{"a": 1, "b": 1}, {"a": "x", "b": 2}, {"b": 3}, {"a": "y", "b": 4}])
    options = ("--handler", f"{handlers}:Add", "--columns", "a,b", "--max-batch-size", "1", "--json")
    for messages in ((), ("--report-messages",)):
        run = ("run", "in.jsonl", "--output", "p.jsonl", *options, "--report", "r.html", *messages)
        assert headrace(*run).code == 0
        commands = re.findall("<code[^>]*>(headrace retry.*?)</code>", (folder.path / "r.html").read_text())
        counts = []
        for command in map(html.unescape, commands):
            again = headrace(*shlex.split(command)[1:], "--json", "--threshold", "1")
            facts = json.loads(again.out)
            assert facts["failures"] == facts["rows"]
            counts.append(facts["rows"])
        assert sorted(counts) == [1, 2, 3]
    lone = headrace("run", "in.jsonl", "--limit", "2", "--output", "q.jsonl", *options, "--report", "q.html")
    assert lone.code == 0
    assert (folder.path / "q.html").read_text().count("headrace retry") == 1


def test_keys_are_not_in_the_command():
    secrets = ["api_key=sk-123", "token=hf_123", "headers={'Authorization': 'Bearer b-1'}", "url=https://me:pw1@host"]
    args = RunArgs(arguments=[], url="https://me:pw2@host/?x=1", handler_args=[*secrets, "max_tokens=5"], isolate=True)
    options = shlex.split(retry_options(args))
    assert "--isolate" in options
    assert "max_tokens=5" in options
    assert {"api_key=***", "token=***"} <= set(options)
    assert not re.search("sk-123|hf_123|b-1|pw1|pw2", " ".join(options))


def test_each_fallback_is_retried_with_the_options_behind_it():
    given = ("--fallback", "one", "--fallback-model", "m1", "--fallback", "two", "--fallback-arg", "api_key=k", "in")
    options = retry_options(parsed(given))
    assert options == "--fallback one --fallback-model m1 --fallback two --fallback-arg 'api_key=***'"
    assert retry_options(parsed(("--fallback-model", "m1", "--fallback", "one", "in"))) == (
        "--fallback one --fallback-model m1"
    )


@pytest.mark.parametrize("keeps", [["--resume"], ["--cache", "c"]])
@pytest.mark.parametrize("limit", [["--budget", "5", "--price", "m=1,1"], ["--budget-tokens", "5"]])
def test_a_budget_is_retried_with_what_it_needs(limit, keeps):
    options = shlex.split(retry_options(parsed([*limit, *keeps, "in"])))
    assert budget_of(parsed([*options, "in"])) is not None
    assert (options[-1] == "--resume") is ("--cache" not in keeps)


def test_rows_that_took_most_are_named_by_their_places(folder, headrace):
    folder.write("in.jsonl", [{"a": 1}, {"a": 500}, {"a": 13}, {"a": 9}])
    folder.write("asks.py", ASKS)
    arguments = ("run", "in.jsonl", "--output", "p.jsonl", "--handler", "asks:Asks", "--max-batch-size", "1")
    assert headrace(*arguments, "--price", "m=1,1", "--report", "r.html").code == 0
    facts = json.loads((folder.path / "r.json").read_text())
    tries = facts["dearest"][1]["requests"]
    assert [(one["row"], one["input_tokens"]) for one in facts["dearest"]] == [
        (2, 500),
        (3, 13 * tries),
        (4, 9),
        (1, 1),
    ]
    assert {one["row"] for one in facts["slowest"]} == {1, 2, 4}
    assert all(one["file"].endswith("in.jsonl") and one["rows"] == 1 for one in facts["slowest"])
    assert "in.jsonl, row 2" in (folder.path / "r.html").read_text()


def test_a_full_disk_costs_the_page_and_nothing_else(run, folder):
    with full_disk(20_000):
        result = run("--report", "run.html")
    assert result.code == 0
    assert "--report: cannot write run.html: File too large" in result.err
    assert len(folder.rows("p.jsonl")) == 2
    assert not list(folder.path.glob("run.html*"))


@pytest.mark.parametrize("facts", ['{"report": 1}', '{"report": 1, "command": "run", "causes": 7}', "[1]"])
def test_figures_made_by_hand_are_one_error(folder, headrace, facts):
    (folder.path / "own.json").write_text(facts)
    result = headrace("report", "own.json")
    assert result.code == 2
    assert re.search("own.json is no (whole )?report", result.error)
