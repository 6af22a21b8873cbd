"""``headrace run`` with Gemini."""

from __future__ import annotations

import pytest

from gemini_endpoint import blocked, prompt_of, speaking
from http_endpoint import serving

ROWS = [{"id": n, "title": f"t{n}", "text": f"x{n}"} for n in range(5)]
ASKING = ("run", "--handler", "gemini", "--model", "m", "--prompt", "{title}: {text}")


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch, requests_end):
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-of-the-environment")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)


@pytest.fixture
def server():
    def fault(asked, before):
        return blocked("SAFETY") if prompt_of(asked) == "t3: x3" else None

    with serving(speaking(fault=fault)) as server:
        yield server


def test_texts_come_out_in_order_and_a_blocked_prompt_is_a_dead_letter(folder, headrace, server):
    folder.write("in.jsonl", ROWS)
    options = ("--url", server.url, "--handler-arg", "full_answer=false", "--output", "p.jsonl")
    result = headrace(*ASKING, "in.jsonl", *options)
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "4", "1")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [f"T{n}: X{n}" for n in (0, 1, 2, 4)]
    (letter,) = folder.rows("p.dead-letters.jsonl")
    assert letter["message"] == "Gemini blocked the prompt: SAFETY"


def test_full_answers_are_objects(folder, headrace, server):
    folder.write("in.jsonl", ROWS[:1])
    assert headrace(*ASKING, "in.jsonl", "--url", server.url, "--output", "p.jsonl").code == 0
    (row,) = folder.rows("p.jsonl")
    assert row["prediction"]["candidates"][0]["content"]["parts"][0]["text"] == "T0: X0"
