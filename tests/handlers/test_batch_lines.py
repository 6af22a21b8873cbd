"""Files of answers are damaged on their way; each line costs at most its own row, and nothing is paid twice."""

from __future__ import annotations

import json

import pytest

import anthropic_endpoint
import openai_endpoint
from batch_endpoint import batching
from headrace import Failure, predict
from headrace.handlers import batch_jobs
from headrace.handlers.anthropic_inference import AnthropicChatModelHandler
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from http_endpoint import Answer

pytestmark = pytest.mark.usefixtures("module_travels")
ASKED = [f"x{n}" for n in range(20)]
ANSWERS = [text.upper() for text in ASKED]


@pytest.fixture(autouse=True)
def _keys_and_short_pauses(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-environment")
    for name in ("FIRST_POLL_SECS", "LONGEST_POLL_SECS"):
        monkeypatch.setattr(batch_jobs, name, 0.01)


@pytest.fixture(params=["openai", "anthropic"])
def provider(request):
    return request.param


@pytest.fixture
def served(provider):
    speak = openai_endpoint if provider == "openai" else anthropic_endpoint
    with batching(speak.speaking()) as server:
        yield server


@pytest.fixture
def ask(provider, served, tmp_path):
    """What comes of these texts: answers, and in the places of others errors."""

    def outcomes(*texts, **options):
        where = {"batch_directory": tmp_path / "batches", **options}
        if provider == "openai":
            handler = OpenAIChatModelHandler("m", url=f"{served.url}v1", **where)
        else:
            handler = AnthropicChatModelHandler("m", url=served.url, **where)
        found = predict(handler, texts, on_failure="yield")
        return [one if isinstance(one, Failure) else one.inference for one in found]

    return outcomes


def failed(outcomes):
    return [one for one in outcomes if isinstance(one, Failure)]


def without_id(line):
    said = json.loads(line)
    del said["custom_id"]
    return json.dumps(said).encode() + b"\n"


def with_id(line, name):
    return json.dumps({**json.loads(line), "custom_id": name}).encode() + b"\n"


def without_answer(line):
    return json.dumps({"custom_id": json.loads(line)["custom_id"], "response": None, "result": None}).encode() + b"\n"


DAMAGES = [
    without_answer,
    without_id,
    lambda line: with_id(line, [1]),
    lambda line: with_id(line, ""),
    lambda line: line.replace(b'"X', b'"\xff'),
    lambda line: line[:-30] + b"\n",
    lambda line: b"oops\n",
    lambda line: b"[1, 2]\n",
    lambda line: b"7\n",
    lambda line: b"[" * 100_000 + b"\n",
    lambda line: line[: len(line) // 2],  # the file ends there
]


def test_line_that_cannot_be_read_is_the_dead_letter_of_its_row(ask, served):
    def damaged(lines):
        rest = lines[-len(DAMAGES) :]
        return [*lines[: -len(rest)], *(damage(line) for damage, line in zip(DAMAGES, rest, strict=True))]

    served.damage = damaged
    found = ask(*ASKED)
    letters = {one.element: str(one.error) for one in failed(found)}
    assert len(letters) == len(DAMAGES)
    assert all("a damaged line" in said for said in letters.values())
    assert [one for one in found if not isinstance(one, Failure)] == [
        text.upper() for text in ASKED if text not in letters
    ]
    served.damage = lambda lines: lines
    assert ask(*ASKED) == ANSWERS
    assert [len(batch.requests) for batch in served.batches] == [20, len(DAMAGES)]


def test_blank_lines_cost_nothing(ask, served):
    blank = b"\r\n\n  \t\r\n"
    served.damage = lambda lines: [part for line in lines for part in (blank, line.replace(b"\n", b"\r\n"))]
    assert ask(*ASKED) == ANSWERS
    assert len(served.bodies) == len(ASKED)


def test_lines_that_run_together_are_dead_letters_of_both_rows(ask, served):
    served.damage = lambda lines: [lines[0][:120], *lines[1:]]
    assert len(failed(ask(*ASKED))) == 2
    assert len(served.bodies) == len(ASKED)


@pytest.mark.parametrize("lacks", [1, 3])
def test_files_that_lack_answers_are_read_again(lacks, ask, served):
    readings = iter(range(lacks))
    served.damage = lambda lines: lines[:-5] if next(readings, None) is not None else lines
    assert ask(*ASKED) == ANSWERS
    assert len(served.batches) == 1


def test_files_that_come_in_pieces_are_put_together(ask, served):
    readings = iter([slice(15), slice(5, 18), slice(19), slice(0)])
    served.damage = lambda lines: lines[next(readings, slice(15, 20))]
    assert ask(*ASKED) == ANSWERS
    assert len(served.batches) == 1


def test_what_a_batch_never_brings_is_sent_again_alone(ask, served):
    served.damage = lambda lines: lines[:-5] if len(lines) == len(ASKED) else lines
    assert ask(*ASKED) == ANSWERS
    assert [len(batch.requests) for batch in served.batches] == [20, 5]


def test_lines_of_other_requests_are_ignored(ask, served, caplog):
    other = lambda line: json.dumps({**json.loads(line), "custom_id": "an\ud800other"}).encode() + b"\n"  # noqa: E731
    served.damage = lambda lines: [other(lines[0]), *lines]
    assert ask(*ASKED) == ANSWERS
    assert len(served.bodies) == len(ASKED)
    assert "1 lines of other requests" in caplog.text
    assert r"an\ud800other" in caplog.text


@pytest.mark.parametrize("order", [1, -1])
def test_result_wins_over_an_error_whatever_the_order(order, provider, ask, served):
    def with_errors(lines):
        error = {"error": {"code": "batch_expired", "message": "in no time"}, "result": {"type": "expired"}}
        errors = [json.dumps({"custom_id": json.loads(line)["custom_id"], **error}).encode() + b"\n" for line in lines]
        return [part for pair in zip(lines, errors, strict=True) for part in pair][::order]

    served.damage = with_errors
    assert ask(*ASKED) == ANSWERS
    assert len(served.bodies) == len(ASKED)


def test_of_doubled_results_the_first_counts(ask, served):
    doubled = lambda line: [line, line.replace(b'"X', b'"Y')]  # noqa: E731
    served.damage = lambda lines: [part for line in lines for part in doubled(line)]
    for _ in range(2):
        assert ask(*ASKED) == ANSWERS
    assert len(served.bodies) == len(ASKED)


NO_COMPLETIONS = [
    *("text", [1], [], {}, None, 7, {"choices": []}),
    *({"choices": ["x"], "content": ["x"]}, {"choices": 5, "content": 5}, {"choices": [{"message": None}]}),
]


def test_answer_that_is_no_completion_is_a_dead_letter_and_asked_for_again_by_a_later_run(ask, served):
    speak, wrong = served.answer, dict(zip(ASKED, NO_COMPLETIONS, strict=False))

    def answer(asked, before):
        text = asked["messages"][-1]["content"]
        return Answer(200, wrong[text]) if text in wrong else speak(asked, before)

    served.answer = answer
    found = ask(*ASKED)
    assert [one.element for one in failed(found)] == list(wrong)
    assert found[len(wrong) :] == ANSWERS[len(wrong) :]
    assert len(served.batches) == 1
    wrong.clear()
    for _ in range(2):
        assert ask(*ASKED) == ANSWERS
        assert [len(batch.requests) for batch in served.batches] == [20, len(NO_COMPLETIONS)]
