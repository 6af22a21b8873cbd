"""``headrace retry`` reads lines that were corrected, in their dead letters or in their files."""

import json
import os

import pytest


@pytest.fixture
def call(headrace, handlers):
    """Runs a command with one of the test's own handlers."""
    return lambda name, handler, *arguments: headrace(name, "--handler", f"{handlers}:{handler}", *arguments)


BROKEN = {
    "in.jsonl": ('{"a": 1}\n{"a": 2}\n?\n{"a": 4}\n', "?", '{"a": 30}', {"a": 30}),
    "in.csv": (
        "a,b,phone\n1,1,01\n2,2,02\n3,3,03,4\n4,4,04\n",
        "3,3,03,4",
        "30,3,03",
        {"a": 30, "b": 3, "phone": "03"},
    ),
}


@pytest.fixture
def unread(folder, call):
    """A run of which one line cannot be read; gives its file's text, the line, a correction, and the row that is."""

    def run(name, encoding="utf-8"):
        text, line, correction, row = BROKEN[name]
        folder.write(name, text)
        assert call("run", "size", name, "--output", "p.jsonl").code == 0
        assert len(folder.rows("p.dead-letters.jsonl")) == 1
        return text, line, correction, row

    return run


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("where", ["file", "letter", "letter in parquet", "row"])
def test_a_line_that_was_corrected_is_read(folder, call, unread, name, where):
    text, line, correction, row = unread(name)
    (letter,) = folder.rows("p.dead-letters.jsonl")
    source = "p.dead-letters.jsonl"
    if where == "file":
        folder.write(name, text.replace(line, correction))
    else:
        letter["row"] = row if where == "row" else {**letter["row"], "line": correction}
        source = "edited.parquet" if where == "letter in parquet" else source
        as_text = {name: json.dumps(letter[name]) for name in ("row", "position")}
        folder.write(source, [{**letter, **as_text} if source.endswith("parquet") else letter])
    result = call("retry", "size", source, "--output", "q.jsonl")
    assert (result.code, result.summary["dead letters"]) == (0, "0")
    assert folder.rows("q.jsonl") == [{**row, "prediction": 1}]


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize(
    "changed",
    [
        lambda text, line, correction: text.replace("1", "9", 1).replace(line, correction).replace("2", "8"),
        lambda text, line, correction: text.replace(line, f"{correction}\n{correction}"),
        lambda text, line, correction: text.replace(f"{line}\n", ""),
        lambda text, line, correction: text[: text.index(line)],
    ],
    ids=["edited", "inserted", "deleted", "cut"],
)
def test_a_line_is_not_taken_for_another_that_is_in_its_place_now(folder, call, unread, name, changed):
    text, line, correction, _ = unread(name)
    folder.write(name, changed(text, line, correction))
    result = call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl")
    assert result.code == 3
    (letter,) = folder.rows("q.dead-letters.failed.jsonl")
    assert letter["row"]["line"] == line
    assert "row 3 of " in letter["message"]
    assert letter["message"].endswith("correct the line in the dead letter")


@pytest.mark.parametrize("place", ["file", "letter"])
def test_a_line_that_is_still_wrong_says_what_is_wrong_now(folder, call, unread, place):
    text, line, _, row = unread("in.jsonl")
    (letter,) = folder.rows("p.dead-letters.jsonl")
    if place == "file":
        folder.write("in.jsonl", text.replace(line, "[1]"))
    else:
        folder.write("p.dead-letters.jsonl", [{**letter, "row": {**letter["row"], "line": "[1]"}}])
    refused = call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl")
    assert refused.code == 3
    assert refused.error.endswith("correct the lines, in the dead letters or in their files.")
    (letter,) = folder.rows("q.dead-letters.failed.jsonl")
    assert (letter["row"]["line"], letter["attempts"]) == ("[1]", 2)
    assert "must be a JSON object" in letter["message"]
    folder.write("in.jsonl", text.replace(line, json.dumps(row)))
    folder.write("again.jsonl", [{**letter, "row": {**letter["row"], "line": json.dumps(row)}}])
    retried = "again.jsonl" if place == "letter" else "q.dead-letters.failed.jsonl"
    assert call("retry", "size", retried, "--output", "r.jsonl").code == 0
    assert folder.rows("r.jsonl") == [{**row, "prediction": 1}]


def test_bytes_that_are_corrected_are_read_from_the_file(folder, call):
    """What the dead letter shows of them is a text of CSV, too."""
    (folder.path / "in.csv").write_bytes(b"a,b\n1,x\n2,caf\xe9\n3,y\n")
    assert call("run", "size", "in.csv", "--output", "p.jsonl").code == 0
    assert call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl").code == 3
    (folder.path / "in.csv").write_bytes("a,b\n1,x\n2,café\n3,y\n".encode())
    assert call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl").code == 0
    assert folder.rows("q.jsonl") == [{"a": 2, "b": "café", "prediction": 1}]


def test_a_file_that_is_gone_is_said(folder, call, unread):
    unread("in.jsonl")
    os.remove("in.jsonl")
    assert (
        "in.jsonl cannot be read again: FileNotFoundError"
        in call("retry", "size", "p.dead-letters.jsonl", "--output", "q.jsonl").out
    )


def test_lines_that_are_corrected_go_into_the_output(folder, call, unread):
    text, line, correction, _ = unread("in.csv")
    folder.write("in.csv", text.replace(line, correction))
    assert call("retry", "size", "p.dead-letters.jsonl", "--into", "p.jsonl").code == 0
    assert [row["a"] for row in folder.rows("p.jsonl")] == [1, 2, 30, 4]
