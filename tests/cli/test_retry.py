"""``headrace retry``: dead letters of ``headrace run`` go through a model once more."""

import gzip
import json
import os
import shlex

import pytest

ROWS = [{"a": 1, "b": 2}, {"a": "x", "b": 3}, {"a": 4, "b": 5}, {"b": 6}]
GOOD = [{"a": 1, "b": 2, "prediction": 3}, {"a": 4, "b": 5, "prediction": 9}]


@pytest.fixture
def call(headrace, handlers):
    """Runs a command with one of the test's own handlers."""
    return lambda name, handler, *arguments: headrace(name, "--handler", f"{handlers}:{handler}", *arguments)


@pytest.fixture
def first_run(folder, call):
    """A run of which two rows fail, one in inference and one before; its dead letters go where they are asked for."""

    def run(*arguments):
        folder.write("in.jsonl", ROWS)
        sizes = ("--min-batch-size", 4, "--max-batch-size", 4, "--columns", "a,b")
        result = call("run", "Add", "in.jsonl", "--output", "p.jsonl", *sizes, *arguments)
        assert (result.code, result.err) == (0, "")
        assert folder.rows("p.jsonl") == GOOD

    return run


@pytest.mark.parametrize("name", ["p.dead-letters.jsonl", "p.dead.parquet", "elsewhere/p.jsonl"])
def test_failed_rows_are_retried_and_attempts_add_up(folder, call, first_run, name):
    first_run("--dead-letters", name)
    letters = {letter["stage"]: letter for letter in folder.rows(name)}
    assert {stage: letter["attempts"] for stage, letter in letters.items()} == {"preprocessing": 1, "inference": 2}
    assert all(letter["model_id"] is None for letter in letters.values())
    result = call("retry", "Add", name, "--output", "q.jsonl", "--dead-letters", "r/q.parquet", "--columns", "a,b")
    assert result.code == 3
    again = {json.loads(letter["row"])["b"]: letter for letter in folder.rows("r/q.failed.parquet")}
    assert {b: letter["attempts"] for b, letter in again.items()} == {3: 3, 6: 2}
    assert folder.names() == sorted(["in.jsonl", "p.jsonl", name, "r/q.failed.parquet"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            "in.jsonl --output q.jsonl",
            "headrace retry takes the dead letters of an earlier run, and headrace run takes rows",
        ),
        (f"{os.devnull} --output q.jsonl", "is a pipe; write the dead letters that come through it to a file"),
        ("p.dead-letters.jsonl --output p.jsonl", "is among the inputs and would be overwritten"),
        ("p.dead-letters.jsonl --output q.jsonl --dead-letters q.jsonl", "are the same file"),
        ("p.dead-letters.jsonl --output q.jsonl --dead-letters q.txt", "--dead-letters must end in"),
        ("p.dead-letters.jsonl --output q.jsonl --columns c", "there is no column 'c'"),
        ("--output q.jsonl --direct_num_workers=1", "no DEAD_LETTERS is given"),
        ("p.dead-letters.jsonl --into p.jsonl --cause 'inference KeyError'", "'inference KeyError' is in"),
        ("some.jsonl --into p.jsonl", "p.dead-letters.jsonl is there and would be lost"),
        ("some.jsonl --into none.jsonl", "there is no "),
        ("some.jsonl --into some.jsonl", "has 1 rows"),
        ("some.jsonl --into p.jsonl --output q.jsonl", "name one of the two"),
        ("some.jsonl", "Missing option '--output'"),
    ],
)
def test_mistakes_are_named_in_one_line(folder, mistake, first_run, arguments, complaint):
    first_run()
    folder.write("some.jsonl", folder.rows("p.dead-letters.jsonl")[:1])
    assert complaint in mistake(*shlex.split(arguments), handler="Size", command="retry", inputs=(), output=())


def letters_at(folder, name="p.dead-letters.jsonl"):
    """The positions of dead letters: row numbers, and the places in the output."""
    return [tuple(letter["position"].get(name) for name in ("row", "before", "of")) for letter in folder.rows(name)]


def ids(folder, name):
    if name.endswith(".gz"):
        (folder.path / "plain.jsonl").write_bytes(gzip.decompress((folder.path / name).read_bytes()))
        return ids(folder, "plain.jsonl")
    if name.endswith(".csv"):
        return [int(line.partition(",")[0]) for line in (folder.path / name).read_text().splitlines()[1:]]
    return [row["id"] for row in folder.rows(name)]


@pytest.mark.parametrize(
    ("output", "letters"),
    [
        ("p.jsonl", "p.dead-letters.jsonl"),
        ("p.jsonl.gz", "q.csv.gz"),
        ("p.parquet", "elsewhere/q.parquet"),
        ("p.csv", "p.dead-letters.jsonl"),
    ],
)
def test_what_succeeds_is_put_into_the_output_in_the_order_of_the_input(folder, call, output, letters):
    for name, first in (("a.jsonl", 0), ("b.jsonl", 100)):
        folder.write(name, [{"id": first + n, "a": 1 if n % 3 else "x"} for n in range(12)])
    more = ("--columns", "id,a", "--max-batch-size", "1", "--dead-letters", letters)
    assert call("run", "Add", "a.jsonl", "b.jsonl", "--output", output, *more).code == 0
    result = call("retry", "Size", letters, "--into", output, *more)
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "8", "0")
    assert folder.names() == ["a.jsonl", "b.jsonl", output]
    assert ids(folder, output) == [*range(12), *range(100, 112)]


def test_what_fails_again_stays_in_the_dead_letters_until_it_succeeds(folder, call):
    """Also rows with the same content, at the beginning and at the end, and one that the user deleted."""
    folder.write("a.jsonl", [{"a": "x"}, {"a": "y"}, {"a": 1}, {"a": "x"}, {"a": 1}, {"a": 1}, {"a": "z"}, {"a": "x"}])
    assert call("run", "Add", "a.jsonl", "--output", "p.jsonl").code == 0
    letters = folder.rows("p.dead-letters.jsonl")
    assert letters_at(folder) == [(1, 0, 3), (2, 0, 3), (4, 1, 3), (7, 3, 3), (8, 3, 3)]
    # 1 and 4 are edited, 2 is deleted, the others are as they were, and in another order.
    edited = [{**letter, "row": {"a": 7}} for letter in (letters[0], letters[2])]
    folder.write("p.dead-letters.jsonl", [letters[4], *edited, letters[3]])
    assert call("retry", "Add", "p.dead-letters.jsonl", "--into", "p.jsonl").code == 0
    assert [row["a"] for row in folder.rows("p.jsonl")] == [7, 1, 7, 1, 1]
    assert sorted(letters_at(folder)) == [(7, 5, 5), (8, 5, 5)]
    assert {letter["attempts"] for letter in folder.rows("p.dead-letters.jsonl")} > {letters[3]["attempts"]}
    assert call("retry", "Size", "p.dead-letters.jsonl", "--into", "p.jsonl").code == 0
    assert [row["a"] for row in folder.rows("p.jsonl")] == [7, 1, 7, 1, 1, "z", "x"]
    assert folder.names() == ["a.jsonl", "p.jsonl"]


@pytest.mark.parametrize(
    ("letters", "more"), [("p.dead-letters.jsonl", ()), ("q.parquet", ("--resume",)), ("q.csv", ())]
)
def test_one_cause_is_retried_and_the_others_stay(folder, call, first_run, letters, more):
    first_run("--dead-letters", letters)
    kept = {letter["stage"]: letter for letter in folder.rows(letters)} if letters != "q.csv" else {}
    retry = ("retry", "Size", letters, "--into", "p.jsonl", "--dead-letters", letters, *more)
    result = call(*retry, "--cause", "inference TypeError:")
    assert (result.code, result.summary["rows"]) == (0, "1")
    assert "dead letters of other causes stay: 1" in result.err
    assert [row["b"] for row in folder.rows("p.jsonl")] == [2, 3, 5]
    if kept:
        (stays,) = folder.rows(letters)
        assert (stays.pop("position"), kept["preprocessing"].pop("position")) != (None, None)
        assert stays == kept["preprocessing"]
    again = call("retry", "Size", letters, "--into", "p.jsonl", "--dead-letters", letters, "--columns", "b")
    assert again.code == 0
    assert [row["b"] for row in folder.rows("p.jsonl")] == [2, 3, 5, 6]
    assert folder.names() == ["in.jsonl", "p.jsonl"]


def test_a_cause_that_goes_on_stays_with_the_others(folder, call, first_run):
    first_run()
    before = folder.rows("p.dead-letters.jsonl")
    retry = ("p.dead-letters.jsonl", "--cause", "TypeError", "--columns", "a,b")
    assert call("retry", "Add", *retry, "--into", "p.jsonl").code == 3
    assert folder.rows("p.dead-letters.jsonl") == before
    assert call("retry", "Add", *retry, "--into", "p.jsonl", "--threshold", "1").code == 0
    assert sorted(letters_at(folder)) == [(2, 1, 2), (4, 2, 2)]
    assert call("retry", "Size", *retry, "--output", "new.jsonl").code == 0
    assert [row["b"] for row in folder.rows("new.jsonl")] == [3]


def moved(letter, **more):
    return {**letter, "position": {**letter["position"], **more}}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda *letters: [{name: one[name] for name in one if name != "position"} for one in letters],
            "dead letter 1 does not say where its row belongs in an output",
        ),
        (lambda one, other: [one, other, one], "a row is among the dead letters twice"),
        (lambda one, other: [moved(one, of=9), other], "the dead letters are not all of one output"),
        (
            lambda *letters: [moved(one, of=9) for one in letters],
            "p.jsonl has 2 rows, and the dead letters are of an output of 9 rows: it has changed since",
        ),
    ],
    ids=["older", "twice", "two outputs", "stale"],
)
def test_letters_that_do_not_fit_the_output_are_one_error_that_names_the_cure(
    folder, mistake, first_run, change, complaint
):
    first_run()
    letters = change(*folder.rows("p.dead-letters.jsonl"))
    folder.write("p.dead-letters.jsonl", letters)
    into = ("--into", "p.jsonl")
    error = mistake(handler="Size", command="retry", inputs=["p.dead-letters.jsonl"], output=into)
    assert complaint in error
    assert "--output" in error or "leave one of them out" in error


def test_the_option_into_wins_over_an_output_of_the_file_of_options(folder, call, first_run):
    first_run()
    folder.write("headrace.toml", '[retry]\noutput = "q.jsonl"\n')
    assert call("retry", "Size", "p.dead-letters.jsonl", "--into", "p.jsonl").code == 0
    assert len(folder.rows("p.jsonl")) == 4


def test_an_empty_file_of_dead_letters_gives_no_rows(folder, call):
    for name in ("none.jsonl", "none.parquet"):
        folder.write(name, [])
        result = call("retry", "Add", name, "--output", "q.jsonl")
        assert (result.code, result.summary["rows"]) == (0, "0")
        assert result.err == "warning: there are no rows in the input.\n"


BROKEN = {
    "in.jsonl": ('{"a": 1}\n{"a": 2}\n?\n{"a": 4}\n', '{"a": 30}', {"a": 30}),
    "in.csv": ("a,b,phone\n1,1,01\n2,2,02\n3,3,03,4\n4,4,04\n", "30,3,03", {"a": 30, "b": 3, "phone": "03"}),
}


def unread(folder, call, name):
    """Runs over a file of which one line cannot be read; gives a correction, the row that is, and the dead letter."""
    text, correction, row = BROKEN[name]
    folder.write(name, text)
    assert call("run", "Size", name, "--output", "p.jsonl").code == 0
    (letter,) = folder.rows("p.dead-letters.jsonl")
    return correction, row, letter


@pytest.mark.parametrize(
    ("name", "where"),
    [("in.jsonl", "letter"), ("in.csv", "letter"), ("in.csv", "letter in parquet"), ("in.jsonl", "row")],
)
def test_a_line_that_was_corrected_is_read(folder, call, name, where):
    correction, row, letter = unread(folder, call, name)
    letter["row"] = row if where == "row" else {**letter["row"], "line": correction}
    source = "edited.parquet" if where == "letter in parquet" else "p.dead-letters.jsonl"
    as_text = {name: json.dumps(letter[name]) for name in ("row", "position")}
    folder.write(source, [{**letter, **as_text} if source.endswith("parquet") else letter])
    result = call("retry", "Size", source, "--output", "q.jsonl")
    assert (result.code, result.summary["dead letters"]) == (0, "0")
    assert folder.rows("q.jsonl") == [{**row, "prediction": 1}]


def test_a_line_that_is_still_wrong_says_what_is_wrong_now(folder, call):
    _, row, letter = unread(folder, call, "in.jsonl")
    folder.write("p.dead-letters.jsonl", [{**letter, "row": {**letter["row"], "line": "[1]"}}])
    refused = call("retry", "Size", "p.dead-letters.jsonl", "--output", "q.jsonl")
    assert refused.code == 3
    assert refused.error.endswith("correct the lines in the dead letters.")
    (letter,) = folder.rows("q.dead-letters.failed.jsonl")
    assert (letter["row"]["line"], letter["attempts"]) == ("[1]", 2)
    assert "must be a JSON object" in letter["message"]
    folder.write("again.jsonl", [{**letter, "row": {**letter["row"], "line": json.dumps(row)}}])
    assert call("retry", "Size", "again.jsonl", "--output", "r.jsonl").code == 0
    assert folder.rows("r.jsonl") == [{**row, "prediction": 1}]


def test_the_option_that_a_message_names_can_be_given(folder, run, mistake):
    folder.write("in.csv", '"a, [b]",n\n1,1\n2,2\n3,3\nx,4\n')
    first = {"handler": "bare", "inputs": ["in.csv"]}
    assert run("--columns", "n", **first).code == 0
    (letter,) = folder.rows("p.dead-letters.jsonl")
    option, given = shlex.split(letter["message"].partition("add ")[2])
    retry = {**first, "command": "retry", "inputs": ["p.dead-letters.jsonl"], "output": ("--output", "q.jsonl")}
    assert "--types: there is no column 'absent'" in mistake(option, "absent=str", **retry)
    assert run("--columns", "n", option, given, **retry).code == 0
    assert run("--columns", "n", option, given, **first).code == 0
    assert folder.rows("q.jsonl") == folder.rows("p.jsonl")[3:] == [{"a, [b]": "x", "n": 4, "prediction": 4}]
