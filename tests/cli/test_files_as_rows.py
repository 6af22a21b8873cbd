"""``--format files``: each file is a row; contents go to the model, and nowhere else."""

import pickle
from functools import partial

import pytest
from sklearn.linear_model import LinearRegression

OWN = '''
import headrace


class Length(headrace.ModelHandler):
    """The length of a content; of a row the names of what it has."""

    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        return [sorted(one) if isinstance(one, dict) else model(one) for one in batch]


def length():
    return Length().with_preprocess_fn(check)


def check(content):
    if content[:3] in (b"bad", "bad"):
        raise ValueError("a broken file")
    return content


def text(content):
    return content.decode()


class Makes(Length):
    """Makes its own examples of rows."""

    def example_from_row(self, row):
        return row["path"] and row["content"]

    def columns_equal_rows(self):
        return True

    def run_columns(self, columns, model, inference_args=None):
        raise NotImplementedError
'''
FILES = {"a.txt": "12", "sub/b.txt": "bad", "sub/c [x] ü.txt": "1234", "sub/deep/d.txt": "", "other.md": "1"}
LENGTHS = {"a.txt": 2, "sub/c [x] ü.txt": 4, "sub/deep/d.txt": 0}


@pytest.fixture
def files(own):
    """The files, below ``in``; the handlers' module is in the current folder."""
    own.write("own_files.py", OWN)
    for name, content in FILES.items():
        own.write(f"in/{name}", content)
    return own


FILES_OF = {"inputs": ["in/**/*.txt"], "handler": "own_files:length"}
CONTENT = ("--format", "files", "--columns", "content")


@pytest.fixture
def letters(files, run):
    """Runs over the files, of which one is a dead letter; retries it when it is called."""
    assert run(*CONTENT, **FILES_OF).code == 0
    again = {**FILES_OF, "inputs": ["p.dead-letters.jsonl"], "command": "retry"}
    return partial(run, "--columns", "content", **again)


def predictions(files, name="p.jsonl"):
    return {row["path"].removeprefix(f"{files.path}/in/"): row["prediction"] for row in files.rows(name)}


@pytest.mark.parametrize("more", [(), ("--runner", "FnApiRunner"), ("--isolate",), ("--decode", "own_files:text")])
def test_contents_go_to_the_model_and_nowhere_else(files, run, more):
    result = run(*CONTENT, *more, **FILES_OF)
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "3", "1")
    assert predictions(files) == LENGTHS
    assert {tuple(row) for row in files.rows("p.jsonl")} == {("path", "size", "modified", "prediction")}
    (letter,) = files.rows("p.dead-letters.jsonl")
    assert letter["row"].keys() == {"path", "size", "modified"}
    assert (letter["stage"], letter["message"]) == ("preprocessing", "a broken file")
    assert (letter["row"]["path"], letter["row"]["size"]) == (str(files.path / "in/sub/b.txt"), 3)


def test_without_being_asked_for_no_content_is_read(files, run):
    (files.path / "in/a.txt").chmod(0)
    assert run("--format", "files", **FILES_OF | {"handler": "own_files:Length"}).code == 0
    assert {tuple(row["prediction"]) for row in files.rows("p.jsonl")} == {("modified", "path", "size")}


@pytest.mark.parametrize("more", [("--columns", "path,content"), ("--decode", "own_files:text")])
def test_a_model_that_takes_columns_takes_files_as_rows_and_what_is_decoded(files, run, more):
    assert run("--format", "files", *more, **FILES_OF | {"handler": "own_files:Makes"}).code == 0
    assert predictions(files) == LENGTHS | {"sub/b.txt": 3}


@pytest.mark.parametrize("into", [True, False])
def test_a_file_that_was_corrected_is_retried(files, letters, into):
    files.write("in/sub/b.txt", "mended")
    assert letters(output=("--into", "p.jsonl") if into else ("--output", "q.jsonl")).code == 0
    rows = {row["path"]: row for row in files.rows("p.jsonl" if into else "q.jsonl")}
    assert len(rows) == (4 if into else 1)
    mended = rows[str(files.path / "in/sub/b.txt")]
    assert (mended["size"], mended["prediction"]) == (6, 6)
    assert list(rows) == sorted(rows)


def test_a_file_that_is_gone_is_a_dead_letter_again(files, letters):
    (files.path / "in/sub/b.txt").unlink()
    assert letters(output=("--output", "q.jsonl")).code == 3
    (letter,) = files.rows("q.dead-letters.failed.jsonl")
    assert (letter["error_type"], letter["attempts"], letter["row"]["size"]) == ("FileNotFoundError", 2, 3)
    assert (letter["position"]["file"], letter["position"]["row"]) == (str(files.path / "in/sub/b.txt"), None)


def test_a_run_does_not_go_on_with_other_files(files, run, mistake):
    assert run(*CONTENT, "--resume", "--threshold", 0, **FILES_OF).code == 3
    files.write("in/new.txt", "")
    assert "these have changed since: the file" in mistake(*CONTENT, "--resume", **FILES_OF)


def test_a_dry_run_shows_contents_and_names_files(files, run):
    result = run(*CONTENT, "--dry-run", **FILES_OF)
    assert "b'1234'" in result.out
    assert f"{files.path}/in/sub/b.txt: a broken file" in result.out


@pytest.mark.parametrize(
    ("pattern", "more", "message"),
    [
        ("in", "", "in is a folder; name its files: 'in/**/*'."),
        ("-", "", "- is a pipe, and no file to be a row of."),
        ("in/*.jpg", "", "no file matches 'in/*.jpg'."),
        ("in/*", "--decode own_files:text --columns path", "add --columns content."),
        ("in/*", "--decode own_files:texts", "own_files has no 'texts'; did you mean 'text'?"),
        ("in/*", "--keep content", "--keep: there is no column 'content'; the columns are path, size, modified."),
        ("in/*", "--columns contents", "there is no column 'contents'; did you mean 'content'?"),
        ("in/*", "--output in/a.jsonl", "in/a.jsonl is among the inputs and would be overwritten"),
        ("in/*.jsonl", "--format jsonl --decode own_files:text", "add --format files"),
    ],
)
def test_mistakes_are_told_before_anything_runs(files, mistake, pattern, more, message):
    files.write("in/a.jsonl", [{"path": "in/a.txt"}])
    assert message in mistake("--format", "files", *more.split(), inputs=[pattern], handler="own_files:length")


def test_a_model_that_knows_no_columns_is_not_given_paths(files, headrace):
    files.path.joinpath("m.pkl").write_bytes(pickle.dumps(LinearRegression().fit([[1.0, 2.0]], [1.0])))
    result = headrace("run", "in/*.txt", "--format", "files", "--model", "m.pkl", "--output", "p.jsonl")
    assert result.code == 2
    assert "needs more of a file than path, size, modified: add --columns content, or --decode" in result.error
