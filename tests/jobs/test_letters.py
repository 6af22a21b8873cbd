"""Dead letters say where their rows belong in an output, and become rows again."""

import json
import pickle

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from headrace.core.errors import ConfigurationError
from headrace.jobs.letters import completed, match_dead_letters, read_dead_letters, schema_of_letters
from headrace.jobs.output_batches import batch_of_lines, lines_in
from headrace.rows.blocks import BrokenLine, TriedRow

LETTER = {"row": {"n": 1, "deep": [1, {"a": None}]}, "stage": "inference", "message": "no", "attempts": 3}
LINE = {"line": "?", "file": "in.jsonl", "line_number": 4}
UNREAD = {"row": LINE, "stage": "reading", "message": "what?", "attempts": 2}


def rows_of(source):
    return [row for rows in read_dead_letters(source, {}) for row in rows]


@pytest.fixture
def write(tmp_path):
    """A file of dead letters in the format that its name tells; returns the one source that it is."""

    def file(name, letters):
        path = tmp_path / name
        if name.endswith(".parquet"):
            flat = [{**letter, "row": json.dumps(letter["row"])} for letter in letters]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), path)
        else:
            path.write_text("".join(json.dumps(letter) + "\n" for letter in letters))
        return match_dead_letters([str(path)])

    return file


@pytest.mark.parametrize("name", ["a.dead-letters.jsonl", "a.parquet"])
def test_rows_come_back_as_they_were(write, name):
    (source,) = write(name, [LETTER, UNREAD])
    row, broken = rows_of(source)
    assert (row, row.attempts) == (LETTER["row"], 3)
    assert (broken.line, broken.file, broken.number, broken.attempts) == ("?", "in.jsonl", 4, 2)
    assert str(broken.error) == "what?"


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_columns_are_those_of_the_first_row_that_could_be_read(write, name):
    assert schema_of_letters(write(name, [UNREAD, LETTER]), {}).columns == ("n", "deep")
    assert schema_of_letters(write("none.jsonl", []), {}).columns == ()


@pytest.mark.parametrize("other", [{"n": 1}, {**LETTER, "row": "[1]"}, {**LETTER, "row": None}])
def test_what_is_no_dead_letter_is_a_broken_line(write, other):
    (source,) = write("a.jsonl", [LETTER, other])
    _, broken = rows_of(source)
    assert isinstance(broken, BrokenLine)
    assert (json.loads(broken.line), broken.file, broken.number) == (other, source.path, 2)
    assert str(broken.error).startswith("no dead letter: ")


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", '{"n": 1}\n'), ("a.csv", "n\n1\n")])
def test_a_file_that_begins_with_something_else_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=f"cannot read .*{name} as dead letters: its first line is no dead"):
        schema_of_letters(match_dead_letters([str(tmp_path / name)]), {})


def test_a_tried_row_is_a_row_wherever_it_goes():
    row = TriedRow({"n": 1}, 3)
    again = pickle.loads(pickle.dumps(row))
    assert (row, again, again.attempts) == ({"n": 1}, {"n": 1}, 3)


def test_letters_get_their_places_and_what_they_hold_stays():
    row = {"text": 'ends, "place": 7}}'}
    texts = [json.dumps({"row": row, "position": {"file": "a", "row": 4, "place": 3}}), json.dumps({"row": row})]
    table = pyarrow.Table.from_batches([batch_of_lines(texts)])
    (done,) = completed([(numpy.array([3, 3]), table)], lambda places: places - 1, 3)
    letter, other = map(json.loads, lines_in(done))
    assert letter == {"row": row, "position": {"file": "a", "row": 4, "place": 3, "before": 2, "of": 3}}
    assert other == {"row": row}
