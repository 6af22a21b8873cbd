"""``headrace run --report``, ``headrace report``, and ``--watch``: the page while the run goes on."""

import html
import json
import re
import shlex
import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest

from full_disk import full_disk
from headrace.cli.options import RunArgs
from headrace.cli.prepare import budget_of
from headrace.cli.watch import LivePage
from headrace.cli.words import parsed, retry_options
from headrace.core.errors import ConfigurationError
from headrace.metrics.report import report_figures
from headrace.metrics.timeline import Timeline

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


@pytest.fixture(autouse=True)
def _files(folder):
    folder.write("in.jsonl", [{"a": 1}, {"a": "secret-1"}, {"a": "secret-2"}, {"a": 2}])
    folder.write("asks.py", ASKS)


def report_of(folder, name="r.json"):
    return json.loads((folder.path / name).read_text())


def commands_in(folder, name="r.html"):
    """The commands that retry dead letters, as words."""
    found = re.findall("<code[^>]*>(headrace retry.*?)</code>", (folder.path / name).read_text())
    return [shlex.split(html.unescape(command)) for command in found]


def test_a_report_has_the_runs_figures_and_no_values_of_rows(run, folder):
    assert run("--report", "run.html").code == 0
    page, figures = ((folder.path / f"run.{kind}").read_text() for kind in ("html", "json"))
    facts = json.loads(figures)
    assert (facts["rows"], facts["predictions"], facts["failures"]) == (4, 2, 2)
    assert sum(facts["timeline"]["rows"]) == 2
    assert set(facts["wall"]) == {"sampled_seconds", "busy_seconds"}
    assert "4 rows in = 4 predictions, dead letters and skipped rows." in page
    assert "secret" not in page + figures


def test_causes_without_messages_are_one_for_each_kind_of_error(run, folder):
    for more, messages in ((), [""]), (("--report-messages",), ["'secret-1'", "'secret-2'"]):
        assert run("--report", "r.json", *more, handler="Vectors").code == 0
        causes = report_of(folder)["causes"]
        assert sorted(one["message"].rpartition(" ")[2] for one in causes) == messages
        assert sum(one["count"] for one in causes) == 2
    assert not (folder.path / "r.html").exists()


def test_a_run_that_fails_has_a_report_too(run, folder):
    assert run("--report", "run.html", handler="Broken").code == 1
    facts = report_of(folder, "run.json")
    assert (facts["exit_code"], facts["exit_reason"], facts["rows"]) == (1, "failed", None)
    assert "The run did not get to its end" in (folder.path / "run.html").read_text()


def test_pages_are_made_again_and_compared(run, headrace, folder):
    for name in ("one.json", "two.json"):
        run("--report", name)
    result = headrace("report", "two.json", "--compare", "one.json", "--output", "both.html")
    assert result.code == 0
    assert "2 dead letters" in result.out
    assert "Compared" in (folder.path / "both.html").read_text()


@pytest.mark.parametrize("facts", ["[1]", "no report"])
def test_figures_made_by_hand_are_one_error(folder, headrace, facts):
    folder.write("own.json", facts)
    result = headrace("report", "own.json")
    assert result.code == 2
    assert "own.json is no report" in result.error


@pytest.mark.parametrize(
    ("handler", "more", "is_elsewhere"), [("Add", (), False), ("Add", ("--isolate",), True), ("asks:Asks", (), True)]
)
def test_more_workers_are_no_advice_where_the_model_computes_elsewhere(run, folder, handler, more, is_elsewhere):
    folder.write("in.jsonl", [{"a": 1}, {"a": 2}])
    assert run("--report", "r.json", *more, handler=handler).code == 0
    assert report_of(folder)["keeps_one_worker"] is is_elsewhere


def test_the_command_for_dead_letters_works_as_pasted(run, folder, headrace):
    folder.write("in.jsonl", [{"a": 1}, {"a": "x"}, {"a": 2}])
    options = ("--inference-arg", "times=3", "--max-batch-size", "2", "--report", "r.html")
    assert run(*options, output=("--output", "an output.jsonl")).code == 0
    letters = folder.path / "an output.dead-letters.jsonl"
    letters.write_text(letters.read_text().replace('"x"', "5"))  # the cause is mended
    assert headrace(*commands_in(folder)[0][1:]).code == 0
    assert [row["prediction"] for row in folder.rows("an output.jsonl")] == [3, 15, 6]


def test_the_command_of_each_cause_retries_its_letters(run, folder, headrace):
    folder.write("in.jsonl", [{"a": 1, "b": 1}, {"a": "x", "b": 2}, {"b": 3}, {"a": "y", "b": 4}])
    options = ("--columns", "a,b", "--max-batch-size", "1", "--report", "r.html")
    for messages in ((), ("--report-messages",)):
        assert run(*options, *messages).code == 0
        again = [headrace(*command[1:], "--json", "--threshold", "1") for command in commands_in(folder)]
        facts = [json.loads(one.out) for one in again]
        assert sorted((one["rows"], one["failures"]) for one in facts) == [(1, 1), (2, 2), (3, 3)]
    assert run(*options, "--limit", "2").code == 0
    assert len(commands_in(folder)) == 1


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


def test_rows_that_took_most_are_named_by_their_places(run, folder, requests_end):
    folder.write("in.jsonl", [{"a": 1}, {"a": 500}, {"a": 13}, {"a": 9}])
    options = ("--max-batch-size", "1", "--price", "m=1,1", "--report", "r.html")
    assert run(*options, handler="asks:Asks").code == 0
    facts = report_of(folder)
    tries = facts["dearest"][1]["requests"]
    dearest = [(2, 500), (3, 13 * tries), (4, 9), (1, 1)]
    assert [(one["row"], one["input_tokens"]) for one in facts["dearest"]] == dearest
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


def got(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def figures():
    return report_figures({"command": "run", "exit_code": 0, "exit_reason": "running", "predictions": 3}, Timeline())


def test_the_page_is_for_those_who_know_the_token(wait_until):
    before = set(threading.enumerate())
    with LivePage(figures, 0) as page:
        text = got(page.address)
        assert "Until now." in text
        assert '<meta http-equiv="refresh"' in text
        for address in (page.address.partition("?")[0], page.address + "x"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                got(address)
        port = int(page.address.partition("?")[0].rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=f"cannot listen on port {port}"):
            LivePage(figures, port)
    with pytest.raises(urllib.error.URLError):
        got(page.address)
    assert wait_until(lambda: set(threading.enumerate()) <= before)  # those that have answered end on their own


def test_a_browser_that_leaves_early_is_no_news(capfd):
    with LivePage(figures, 0) as page:
        host, _, rest = page.address.removeprefix("http://").partition("/")
        name, _, port = host.partition(":")
        with socket.create_connection((name, int(port))) as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets when it closes
            browser.sendall(f"GET /{rest} HTTP/1.1\r\n\r\n".encode())
        got(page.address)
    assert capfd.readouterr().err == ""


def test_a_port_is_one(mistake):
    assert "--watch" in mistake("--watch", "99999")
