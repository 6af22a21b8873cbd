"""``headrace run`` with handlers of models behind an API."""

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
def ask(folder, run):
    """Runs OpenAI's handler over five rows, or others, at a server."""
    folder.write("in.jsonl", ROWS)
    model = ("--handler", "openai", "--model", "m")
    return lambda server, *words, **options: run(*model, "--url", f"{server.url}v1", *words, **options)


def predictions(folder):
    return [row["prediction"] for row in folder.rows("p.jsonl")]


def test_rows_are_asked_with_a_prompt_and_without_what_it_needs_they_cost_nothing(folder, ask):
    folder.write("in.jsonl", [*ROWS, {"id": 5, "title": "t5", "text": None}, {"id": 6, "title": "t6"}])
    with serving(speaking()) as server:
        result = ask(server, "--prompt", "{title}: {text}")
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "5", "2")
    assert predictions(folder) == [f"T{n}: X{n}" for n in range(5)]
    assert [row["model_id"] for row in folder.rows("p.jsonl")] == ["m"] * 5
    assert len(server.requests) == 5


def test_schema_and_arguments_come_from_the_command_line(folder, ask):
    """And rows come from CSV, too."""
    folder.write("in.csv", "id,text\n" + "".join(f"{n},x{n}\n" for n in range(5)))
    folder.write("label.json", json.dumps({"type": "object", "required": ["label"]}))
    with serving(speaking(lambda prompt: json.dumps({"label": prompt}))) as server:
        schema = ("--handler-arg", "json_schema=label.json")
        words = ("--prompt", "{id}: {text}", *schema, "--inference-arg", "temperature=0")
        assert ask(server, *words, inputs=["in.csv"]).code == 0
    assert {asked["temperature"] for asked in server.requests} == {0}
    assert predictions(folder) == [{"label": f"{n}: x{n}"} for n in range(5)]


def test_keys_are_in_no_file_and_no_output(folder, ask):
    def fault(asked, before):
        return refusing(400, f"you sent {KEY}") if prompts_of(asked) == ["x3"] else None

    with serving(speaking(fault=fault)) as server:
        result = ask(server, "--columns", "text", "--verbose")
    assert (result.code, result.summary["dead letters"]) == (0, "1")
    assert b"you sent ***" in folder.contents()["p.dead-letters.jsonl"]
    assert not [name for name, content in folder.contents().items() if KEY.encode() in content]
    assert KEY not in result.out + result.err


def test_wrong_key_is_one_error_without_the_key(ask):
    with serving(lambda asked, before: refusing(401, f"Incorrect API key provided: {KEY}.")) as server:
        result = ask(server, "--columns", "text")
    assert len(server.requests) == 2
    assert result.code == 1
    assert result.error.startswith("the run failed: OpenAIChatModelHandler: the endpoint refused the first request")
    assert "Incorrect API key provided: ***. Check the key" in result.error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--handler", "sklearn-numpy", "--url", "http://x"], "sklearn-numpy has no parameter for --url"),
        (["--url", "x"], "url must be that of an API"),
        (["--prompt", "{a}", "--handler-arg", "prompt={a}"], "--prompt and --handler-arg prompt are the same"),
        (
            ["--prompt", "{id}: {txt}"],
            "--prompt: there is no column 'txt'; did you mean 'text'? The columns are id, title, text.",
        ),
        ([], "choose one column with the prompt (--columns, in Python columns=)"),
        (["--api-key", KEY], "neither headrace nor Beam has an option --api-key"),
        (["--handler-arg", "system=short", f"api_key={KEY}"], "repeat the option: --handler-arg api_key=***"),
    ],
)
def test_mistakes_are_found_before_anything_runs_and_keys_not_repeated(folder, mistake, words, said):
    folder.write("in.jsonl", ROWS)
    folder.write("m", "")
    error = mistake("--handler", "openai", "--model", "m", *words)
    assert said in error
    assert KEY not in error


def test_resumed_run_asks_for_the_rest_only_and_another_prompt_is_another_run(folder, ask):
    common = ("--columns", "text", "--resume", "--max-batch-size", "1")
    with serving(speaking(fault=lambda asked, before: refusing(402, "pay first") if before >= 1 else None)) as server:
        assert ask(server, *common).code == 1
        server.answer = speaking()
        kept = {name: content for name, content in folder.contents().items() if name.startswith(".p.jsonl")}
        assert kept
        assert not [name for name, content in kept.items() if KEY.encode() in content]
        changed = ask(server, *common, "--prompt", "{text}")
        assert (changed.code, "--prompt" in changed.error) == (2, True)
        assert ask(server, *common).code == 0
    assert predictions(folder) == [f"X{n}" for n in range(5)]
