"""Answers that cannot be used, in batches: each is a dead letter, and a later run asks again."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from batch_endpoint import batching
from headrace import EndpointError, Failure, predict
from headrace.handlers import batch_jobs
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from http_endpoint import Answer
from openai_endpoint import completion, refusing, speaking

pytestmark = pytest.mark.usefixtures("module_travels")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture(autouse=True)
def _key_and_short_pauses(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    for name in ("FIRST_POLL_SECS", "LONGEST_POLL_SECS"):
        monkeypatch.setattr(batch_jobs, name, 0.01)


@pytest.fixture
def ask(tmp_path):
    """What comes of texts at a server: predictions, and the texts of errors in the places of others."""

    def outcomes(server, *texts, **options):
        handler = OpenAIChatModelHandler("m", url=f"{server.url}v1", batch_directory=tmp_path / "b", **options)
        found = predict(handler, texts, on_failure="yield")
        return [str(one.error) if isinstance(one, Failure) else one.inference for one in found]

    return outcomes


def test_answers_that_do_not_fit_are_sent_back_in_another_batch(ask):
    def answer(text):
        return '{"n": 1}' if "cannot be used" in text or text == "good" else "none"

    with batching(speaking(answer)) as server:
        assert ask(server, "good", "bad", json_schema=SCHEMA) == [{"n": 1}, {"n": 1}]
        assert [len(batch.requests) for batch in server.batches] == [2, 1]


def test_answer_that_never_fits_is_a_dead_letter(ask):
    with batching(speaking(lambda text: "none")) as server:
        (said,) = ask(server, "a", json_schema=SCHEMA)
        assert "no JSON" in said


@pytest.mark.parametrize("ended", ["stop", "length"])
def test_answer_that_does_not_fit_is_asked_for_again_by_a_later_run_only(ended, ask):
    value = ["none"]
    with batching(lambda asked, _: completion(value[0], finish=ended)) as server:
        assert len(ask(server, "a", "a", json_schema=SCHEMA, max_batch_size=1)) == 2
        asked = 2 if ended == "stop" else 1
        assert len(server.batches) == asked
        value[0] = '{"n": 1}'
        for _ in range(2):
            assert ask(server, "a", json_schema=SCHEMA) == [{"n": 1}]
            assert len(server.batches) == asked + 1


def test_answer_whose_repair_failed_for_now_is_not_asked_for_again(ask):
    faults = [refusing(500)]

    def fault(asked, _):
        return faults[0] if faults and "cannot be used" in asked["messages"][-1]["content"] else None

    with batching(speaking(lambda text: '{"n": 1}' if "cannot" in text else "none", fault)) as server:
        (said,) = ask(server, "a", json_schema=SCHEMA)
        assert "500" in said
        faults.clear()
        assert ask(server, "a", json_schema=SCHEMA) == [{"n": 1}]
        assert ["cannot be used" in str(body["messages"]) for body in server.bodies] == [False, True, True, True, True]


def test_usage_that_cannot_be_read_costs_nothing(ask):
    speak = speaking()
    with batching(lambda asked, _: Answer(body={**speak(asked, 0).body, "usage": {"prompt_tokens": "many"}})) as server:
        assert ask(server, "a", "b") == ["A", "B"]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-5000])


def empty(file):
    file.write_bytes(b"")


def overwrite(file):
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"x" * 40_000 + content[44_096:])


def of_others(file):
    file.unlink()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE requests (id, batch, what)")


def lock_by_a_folder(file):
    (file.parent / "lock").unlink()
    (file.parent / "lock").mkdir()


@pytest.mark.parametrize("harm", [truncate, empty, overwrite, of_others, lock_by_a_folder])
def test_damaged_folder_is_one_error_and_nothing_is_sent(harm, ask, tmp_path):
    asked = [f"{n} " * 100 for n in range(50)]
    with batching(speaking()) as server:
        ask(server, *asked)
        with closing(sqlite3.connect(tmp_path / "b" / "batches.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        harm(tmp_path / "b" / "batches.db")
        with pytest.raises(EndpointError, match=r"cannot be used.*Name another folder"):
            ask(server, *asked, "new")
        assert len(server.batches) == 1


@pytest.mark.parametrize("body", ["NULL", "x'ff00'", "CAST(x'22ff22' AS TEXT)", "substr(body, 1, 9)"])
def test_damaged_answer_is_the_dead_letter_of_its_row(body, ask, tmp_path):
    with batching(speaking()) as server:
        assert ask(server, "a", "b", "c") == ["A", "B", "C"]
        with closing(sqlite3.connect(tmp_path / "b" / "batches.db")) as database, database:
            database.execute(f"UPDATE requests SET body = {body} WHERE body LIKE '%\"B\"%'")
        a, b, c = ask(server, "a", "b", "c")
        assert (a, c) == ("A", "C")
        assert b != "B"
        assert len(server.batches) == 1
        assert ask(server, "a", "b", "c") == ["A", "B", "C"]
        assert [len(batch.requests) for batch in server.batches] == [3, 1]
