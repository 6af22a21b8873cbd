"""``headrace retry`` reads lines that were corrected in their dead letters."""

import json

import pytest


@pytest.fixture
def call(headrace, handlers):
    """Runs a command with one of the test's own handlers."""
    return lambda name, handler, *arguments: headrace(name, "--handler", f"{handlers}:{handler}", *arguments)


BROKEN = {
    "in.jsonl": ('{"a": 1}\n{"a": 2}\n?\n{"a": 4}\n', '{"a": 30}', {"a": 30}),
    "in.csv": (
        "a,b,phone\n1,1,01\n2,2,02\n3,3,03,4\n4,4,04\n",
        "30,3,03",
        {"a": 30, "b": 3, "phone": "03"},
    ),
}


@pytest.fixture
def unread(folder, call):
    """A run of which one line cannot be read; gives a correction, and the row that is."""

    def run(name):
        text, correction, row = BROKEN[name]
        folder.write(name, text)
        assert call("run", "size", name, "--output", "p.jsonl").code == 0
        assert len(folder.rows("p.dead-letters.jsonl")) == 1
        return correction, row

    return run


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("where", ["letter", "letter in parquet", "row"])
def test_a_line_that_was_corrected_is_read(folder, call, unread, name, where):
    correction, row = unread(name)
    (letter,) = folder.rows("p.dead-letters.jsonl")
    letter["row"] = row if where == "row" else {**letter["row"], "line": correction}
    source = "edited.parquet" if where == "letter in parquet" else "p.dead-letters.jsonl"
    as_text = {name: json.dumps(letter[name]) for name in ("row", "position")}
    folder.write(source, [{**letter, **as_text} if source.endswith("parquet") else letter])
    result = call("retry", "size", source, "--output", "q.jsonl")
    assert (result.code, result.summary["dead letters"]) == (0, "0")
    assert folder.rows("q.jsonl") == [{**row, "prediction": 1}]


def test_a_line_that_is_still_wrong_says_what_is_wrong_now(folder, call, unread):
    _, row = unread("in.jsonl")
    (letter,) = folder.rows("p.dead-letters.jsonl")
    folder.write("p.dead-letters.jsonl", [{**letter, "row": {**letter["row"], "line": "[1]"}}])
    refused = call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl")
    assert refused.code == 3
    assert refused.error.endswith("correct the lines in the dead letters.")
    (letter,) = folder.rows("q.dead-letters.failed.jsonl")
    assert (letter["row"]["line"], letter["attempts"]) == ("[1]", 2)
    assert "must be a JSON object" in letter["message"]
    folder.write("again.jsonl", [{**letter, "row": {**letter["row"], "line": json.dumps(row)}}])
    assert call("retry", "size", "again.jsonl", "--output", "r.jsonl").code == 0
    assert folder.rows("r.jsonl") == [{**row, "prediction": 1}]
