"""What an endpoint has answered is kept when the command is interrupted or killed: nothing is paid for twice."""

import os
import signal
import threading

import pytest

from http_endpoint import Answer, serving
from waiting import wait_until

pytestmark = pytest.mark.large

MODULE = """
import json
import urllib.request

import headrace


class Asks(headrace.RemoteModelHandler):
    max_concurrent = 8

    def __init__(self, url):
        super().__init__()
        self.url = url

    def create_client(self):
        return self.url

    def request(self, batch, model, inference_args=None):
        body = json.dumps([row["n"] for row in batch]).encode()
        with urllib.request.urlopen(urllib.request.Request(model, body, method="POST")) as answer:
            return [{"twice": one} for one in json.load(answer)]

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}

    def cache_key(self):
        return "asks"
"""
IN_FLIGHT = 8
ON_THEIR_WAY = 3 * IN_FLIGHT
"""Requests, and answers that the run has not looked at yet."""
ROWS = 600
EVERYTHING = [(n, {"twice": 2 * n}) for n in range(ROWS)]


class Gate:
    """An endpoint that answers each row up to a number at once, later ones when it is opened, and some never."""

    def __init__(self, at_once=ROWS, never=()):
        self.at_once = at_once
        self.never = never
        self.opened = threading.Event()
        self.answered = []
        self.held = []

    def __call__(self, examples, before):
        (number,) = examples
        if not self.opened.is_set() and (number >= self.at_once or number in self.never):
            self.held.append(number)
            assert (threading.Event() if number in self.never else self.opened).wait(60) or number in self.never
        self.answered.append(number)
        return Answer(delay=0.002)


@pytest.fixture
def endpoint():
    """Serves as a gate does; what is never answered is, when the test ends."""
    gate = Gate()
    with serving(gate) as server:
        gate.url = server.url
        yield gate
        gate.opened.set()


@pytest.fixture
def run(own, command, endpoint):
    """Starts the run as a process."""
    own.write("asks.py", MODULE)
    own.write("in.jsonl", [{"n": n} for n in range(ROWS)])
    arguments = ["run", "in.jsonl", "--handler", "asks:Asks", "--handler-arg", f"url={endpoint.url}", "--no-progress"]
    return lambda *more: command(*arguments, "--output", "p.jsonl", *more)


def ended(process):
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def finish(run, folder, endpoint, *options):
    """Runs the rest; returns how many answers there were in all."""
    endpoint.opened.set()
    assert ended(run(*options)) == (0, "")
    assert [(row["n"], row["prediction"]) for row in folder.rows("p.jsonl")] == EVERYTHING
    assert set(endpoint.answered) == set(range(ROWS))
    return len(endpoint.answered)


KEPT = "nothing was written. ({} rows are done and kept; the same command goes on from there.)"
CACHED = "nothing was written; the same command goes on from the cache."


@pytest.mark.parametrize(
    ("options", "number", "message"),
    [
        (["--resume", "--cache", "cache"], signal.SIGTERM, KEPT),
        (["--cache", "cache"], signal.SIGINT, CACHED),
        ([], signal.SIGINT, "nothing was written."),
    ],
)
def test_interrupt_waits_for_requests_in_flight(run, folder, endpoint, options, number, message):
    endpoint.at_once = 20
    process = run(*options)
    assert wait_until(lambda: len(endpoint.held) == IN_FLIGHT)
    process.send_signal(number)
    first = process.stderr.readline()
    endpoint.opened.set()
    assert first.startswith("interrupted: waiting up to 5 s for requests in flight; interrupt again")
    code, errors = ended(process)
    answered = len(endpoint.answered)
    assert (code, errors) == (128 + number, f"error: interrupted; {message.format(answered)}\n")
    assert IN_FLIGHT < answered <= 20 + IN_FLIGHT
    assert not set(endpoint.held) - set(endpoint.answered)
    assert not (folder.path / "p.jsonl").exists()
    assert finish(run, folder, endpoint, *options) == (ROWS if options else ROWS + answered)


@pytest.mark.parametrize("again", [False, True], ids=["time", "again"])
def test_interrupt_waits_neither_for_ever_nor_after_another(run, folder, endpoint, again):
    endpoint.at_once, endpoint.never = 20, (21,) if not again else range(20, ROWS)
    process = run("--resume")
    assert wait_until(lambda: len(endpoint.held) == IN_FLIGHT)
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    if again:
        process.send_signal(signal.SIGINT)
    else:
        endpoint.opened.set()
    code, errors = ended(process)
    assert (code, errors) == (130, f"error: interrupted; {KEPT.format(len(endpoint.answered))}\n")
    assert again == set(endpoint.answered).isdisjoint(endpoint.held)
    endpoint.never = ()
    assert finish(run, folder, endpoint, "--resume") >= ROWS


@pytest.mark.parametrize("options", [["--resume", "--price", "*=1,1"], ["--cache", "cache"]], ids=str)
def test_kill_loses_no_more_than_was_on_its_way(run, folder, endpoint, options):
    process = run(*options)
    for count in (100, 300):
        assert wait_until(lambda count=count: len(endpoint.answered) >= count)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        process = run(*options)
    assert ended(process) == (0, "")
    assert [(row["n"], row["prediction"]) for row in folder.rows("p.jsonl")] == EVERYTHING
    assert len(endpoint.answered) <= ROWS + 2 * ON_THEIR_WAY
