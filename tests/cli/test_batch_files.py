"""``headrace run --batch-directory``: rows are sent as batches, and interrupted runs collect what they have sent."""

import os
import signal

import pytest

import anthropic_endpoint
from batch_endpoint import batching
from headrace.handlers import batch_jobs
from http_endpoint import Answer
from openai_endpoint import speaking
from waiting import wait_until

ROWS = [{"id": n, "text": f"x{n}"} for n in range(6)]
ANSWERS = [f"X{n}" for n in range(6)]


@pytest.fixture(autouse=True)
def _keys_and_short_pauses(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-environment")
    monkeypatch.setattr(batch_jobs, "FIRST_POLL_SECS", 0.01)


def arguments(server, name, output, kind="openai"):
    url = f"{server.url}v1" if kind == "openai" else server.url
    which = ["run", name, "--handler", kind, "--model", "m", "--url", url, "--columns", "text", "--keep", "id"]
    return [*which, "--batch-directory", "batches", "--output", output, "--resume"]


def answers(folder, name):
    return [row["prediction"] for row in sorted(folder.rows(name), key=lambda row: row["id"])]


@pytest.mark.parametrize(
    ("name", "output", "more", "sizes"),
    [("in.csv", "p.jsonl", (), [6]), ("in.parquet", "p.parquet", ("--max-batch-size", "4"), [2, 4])],
)
def test_rows_of_files_are_sent_as_batches(folder, headrace, name, output, more, sizes):
    as_csv = "id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in ROWS)
    folder.write(name, as_csv if name.endswith(".csv") else ROWS)
    with batching(speaking()) as server:
        result = headrace(*arguments(server, name, output), "--price", "m=1,2", *more)
        assert result.code == 0, result
        assert answers(folder, output) == ANSWERS
        assert sorted(len(batch.requests) for batch in server.batches) == sizes


def test_retry_asks_again_for_an_answer_that_cannot_be_used(folder, headrace):
    folder.write("in.jsonl", ROWS)
    speak, wrong = speaking(), [Answer(body=["no completion"])]
    with batching(lambda asked, _: wrong[0] if wrong and "x3" in str(asked) else speak(asked, 0)) as server:
        assert headrace(*arguments(server, "in.jsonl", "p.jsonl")).code == 0
        assert answers(folder, "p.jsonl") == [text for text in ANSWERS if text != "X3"]
        assert len(server.bodies) == 6
        wrong.clear()
        retry = arguments(server, "p.dead-letters.jsonl", "r.jsonl")
        assert headrace("retry", *(word for word in retry[1:] if word != "--resume")).code == 0
        assert answers(folder, "r.jsonl") == ["X3"]
        assert len(server.bodies) == 7


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("openai", signal.SIGKILL),
        ("openai", signal.SIGINT),
        pytest.param("anthropic", signal.SIGKILL, marks=pytest.mark.large),
    ],
)
def test_a_run_that_was_ended_collects_its_batch_when_it_is_run_again(folder, headrace, command, kind, number):
    folder.write("in.jsonl", ROWS)
    speak = speaking() if kind == "openai" else anthropic_endpoint.speaking()
    with batching(speak) as server:
        server.held = True
        process = command(*arguments(server, "in.jsonl", "p.jsonl", kind))
        assert wait_until(lambda: server.polled.is_set() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, number)
        _, said = process.communicate()
        if number == signal.SIGINT:
            assert process.returncode == 130, said
            assert "Batches that were sent stay at the provider: the same command" in said
        server.held = False
        assert headrace(*arguments(server, "in.jsonl", "p.jsonl", kind)).code == 0
        assert answers(folder, "p.jsonl") == ANSWERS
        assert len(server.batches) == 1
