"""``headrace run`` with handlers of models behind an API."""

from __future__ import annotations

import json

import pytest

from http_endpoint import serving
from openai_endpoint import prompts_of, refusing, speaking

KEY = "sk-of-the-environment"
ROWS = [{"id": n, "title": f"t{n}", "text": f"x{n}"} for n in range(5)]


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server():
    with serving(speaking()) as server:
        yield server


def run_openai(headrace, server, *arguments, name="openai"):
    return headrace("run", "--handler", name, "--model", "m", "--url", f"{server.url}v1", *arguments)


def as_csv(rows):
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n"


@pytest.mark.parametrize(
    ("name", "output"), [("in.jsonl", "p.jsonl"), ("in.csv", "p.jsonl"), ("in.parquet", "p.parquet")]
)
def test_rows_of_every_format_are_asked_with_a_prompt(folder, headrace, server, name, output):
    folder.write(name, as_csv(ROWS) if name.endswith(".csv") else ROWS)
    result = run_openai(headrace, server, name, "--prompt", "{title}: {text}", "--output", output)
    assert (result.code, result.summary["predictions"]) == (0, "5")
    asked = [f"T{n}: X{n}" for n in range(5)]
    assert [row["prediction"] for row in folder.rows(output)] == asked
    assert [row["model_id"] for row in folder.rows(output)] == ["m"] * 5


def test_schema_and_arguments_come_from_the_command_line(folder, headrace):
    folder.write("in.jsonl", ROWS)
    folder.write("label.json", json.dumps({"type": "object", "required": ["label"]}))
    with serving(speaking(lambda prompt: json.dumps({"label": prompt}))) as server:
        result = run_openai(
            headrace, server, "in.jsonl", "--prompt", "{text}", "--handler-arg", "json_schema=label.json",
            "--inference-arg", "temperature=0", "--output", "p.jsonl",
        )  # fmt: skip
        assert {asked["temperature"] for asked in server.requests} == {0}
    assert result.code == 0
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [{"label": f"x{n}"} for n in range(5)]


def test_row_without_what_the_prompt_needs_is_a_dead_letter_and_costs_nothing(folder, headrace, server):
    folder.write("in.jsonl", [*ROWS, {"id": 5, "title": "t5", "text": None}, {"id": 6, "title": "t6"}])
    result = run_openai(headrace, server, "in.jsonl", "--prompt", "{title}: {text}", "--output", "p.jsonl")
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "5", "2")
    assert len(server.requests) == 5


def test_keys_are_in_no_file_and_no_output(folder, headrace):
    fault = lambda asked, before: refusing(400, f"you sent {KEY}") if prompts_of(asked) == ["x3"] else None  # noqa: E731
    folder.write("in.jsonl", ROWS)
    with serving(speaking(fault=fault)) as server:
        result = run_openai(headrace, server, "in.jsonl", "--columns", "text", "--output", "p.jsonl", "--verbose")
    assert (result.code, result.summary["dead letters"]) == (0, "1")
    assert "you sent ***" in (folder.path / "p.dead-letters.jsonl").read_text()
    assert all(KEY not in (folder.path / name).read_text() for name in folder.names())
    assert KEY not in result.out + result.err


def test_wrong_key_is_one_error_without_the_key(folder, headrace):
    folder.write("in.jsonl", ROWS)
    with serving(lambda asked, before: refusing(401, f"Incorrect API key provided: {KEY}.")) as server:
        result = run_openai(headrace, server, "in.jsonl", "--columns", "text", "--output", "p.jsonl")
        assert len(server.requests) == 2
    assert result.code == 1
    assert result.error.startswith("the run failed: OpenAIChatModelHandler: the endpoint refused the first request")
    assert "Incorrect API key provided: ***. Check the key" in result.error


def test_key_out_of_place_is_not_repeated(folder, headrace):
    folder.write("in.jsonl", ROWS)
    pairs = ["--handler-arg", "system=short", f"api_key={KEY}"]
    result = headrace("run", "--handler", "openai", "--model", "m", *pairs, "in.jsonl", "--output", "p.jsonl")
    assert result.code == 2
    assert "repeat the option: --handler-arg api_key=***" in result.error
    assert KEY not in result.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--handler", "sklearn-numpy", "--model", "m", "--url", "http://x"],
            "sklearn-numpy has no parameter for --url",
        ),
        (["--handler", "openai", "--model", "m", "--url", "x"], "url must be that of an API"),
        (
            ["--handler", "openai", "--model", "m", "--prompt", "{a}", "--handler-arg", "prompt={a}"],
            "--prompt and --handler-arg prompt are the same",
        ),
        (
            ["--handler", "openai", "--model", "m", "--prompt", "{id}: {txt}"],
            "--prompt: there is no column 'txt'; did you mean 'text'? The columns are id, title, text.",
        ),
        (["--handler", "openai", "--model", "m"], "choose one column with the prompt (--columns, in Python columns=)"),
        (
            ["--handler", "openai", "--model", "m", "--api-key", KEY],
            "neither headrace nor Beam has an option --api-key",
        ),
    ],
)
def test_mistakes_are_found_before_anything_runs(folder, headrace, arguments, said):
    folder.write("in.jsonl", ROWS)
    (folder.path / "m").touch()
    result = headrace("run", "in.jsonl", "--output", "p.jsonl", *arguments)
    assert result.code == 2
    assert said in result.error
    assert KEY not in result.error


def test_resumed_run_asks_for_the_rest_only_and_another_prompt_is_another_run(folder, headrace):
    folder.write("in.jsonl", ROWS)
    with serving(speaking(fault=lambda asked, before: refusing(402, "pay first") if before >= 1 else None)) as server:
        common = ["in.jsonl", "--columns", "text", "--output", "p.jsonl", "--resume", "--max-batch-size", "1"]
        assert run_openai(headrace, server, *common).code == 1
        server.answer = speaking()
        kept = {path.name for path in folder.path.iterdir() if path.name.startswith(".p.jsonl")}
        assert kept
        assert all(
            KEY not in path.read_bytes().decode(errors="replace") for path in folder.path.rglob("*") if path.is_file()
        )
        changed = run_openai(headrace, server, *common, "--prompt", "{text}")
        assert changed.code == 2
        assert "--prompt" in changed.error
        assert run_openai(headrace, server, *common).code == 0
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [f"X{n}" for n in range(5)]


def test_largest_batch_may_be_smaller_than_the_handlers_smallest(folder, headrace):
    folder.write("in.jsonl", ROWS)
    asks = ("--handler", "openai-embeddings", "--model", "m", "--columns", "text", "--max-batch-size", "2")
    with serving(speaking()) as server:
        result = headrace("run", *asks, "--url", f"{server.url}v1", "in.jsonl", "--output", "p.jsonl")
        assert [len(prompts_of(asked)) for asked in server.requests] == [2, 2, 1]
    assert (result.code, result.summary["predictions"]) == (0, "5")
