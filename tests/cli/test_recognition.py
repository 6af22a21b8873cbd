"""``headrace run`` without ``--handler``: the model's file decides, and its own names choose the columns."""

import os
import pickle

import numpy
import pandas
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

FRAME = pandas.DataFrame({"age": [20, 30, 40, 50] * 5, "city": list("abab") * 5, "income": [1.5, 2.0, 1.0, 3.0] * 5})
LABELS = numpy.array([0, 0, 1, 1] * 5)
ENCODED = ColumnTransformer([("city", OneHotEncoder(), ["city"])], remainder="passthrough")
ROWS = "id,income,age,city,label\n1,1.5,20,a,0\n2,3.0,50,b,1\n"
LINE = "model.pkl is a Pipeline of scikit-learn: --handler sklearn-pandas --columns age,city,income"


@pytest.fixture
def model(folder):
    """A pipeline that was fitted on a frame, in a file."""
    fitted = make_pipeline(ENCODED, LogisticRegression(max_iter=1000)).fit(FRAME, LABELS)
    (folder.path / "model.pkl").write_bytes(pickle.dumps(fitted))
    folder.write("in.csv", ROWS)
    return fitted


@pytest.fixture
def arrays(folder):
    """A model that was fitted on an array of two columns, in a file."""
    fitted = LogisticRegression().fit(FRAME[["age", "income"]].to_numpy(), LABELS)
    (folder.path / "model.pkl").write_bytes(pickle.dumps(fitted))
    return fitted


@pytest.fixture
def run(headrace):
    """Runs a model's file over in.csv, or another."""
    return lambda *options, source="in.csv", model="model.pkl": headrace(
        "run", source, "--model", model, "--output", "p.jsonl", *options
    )


def predictions(folder):
    return [row["prediction"] for row in folder.rows("p.jsonl")]


NAMED = pytest.mark.parametrize("options", [[], ["--handler", "sklearn-pandas"]], ids=["", "named"])


@NAMED
def test_the_file_decides_and_says_so(folder, run, model, options):
    """Where a handler is named, of the columns only."""
    result = run(*options)
    assert (result.code, result.err) == (0, f"{LINE}\n")
    assert predictions(folder) == list(model.predict(pandas.read_csv("in.csv")))
    assert [row["id"] for row in folder.rows("p.jsonl")] == [1, 2]
    assert run(*options, "--handler", "sklearn-pandas", "--columns", "age,city,income").err == ""


@NAMED
def test_chosen_columns_that_lack_what_the_model_wants_are_refused(run, mistake, model, options):
    error = mistake("--columns", "income,label", *options)
    assert "--columns: the model, a Pipeline of scikit-learn, wants 'age' (and 1 more), too; without" in error
    assert run("--columns", "*").code == 0


@NAMED
def test_a_column_that_the_input_lacks_is_one_error(folder, mistake, model, options):
    folder.write("in.csv", ROWS.replace("age", "Ages").replace("city", "town"))
    assert mistake(*options) == (
        "the model, a Pipeline of scikit-learn, wants a column 'age' (and 1 more that the input lacks), and the input "
        "has none; did you mean 'Ages'? Its columns are id, income, Ages, town, label."
    )


def test_a_table_of_as_many_numbers_as_the_model_takes_needs_no_names(folder, run, arrays):
    folder.write("in.csv", "a,b\n20,1.5\n50,3.0\n")
    said = "model.pkl is a LogisticRegression of scikit-learn: --handler sklearn-numpy\n"
    result = run()
    assert (result.code, result.err) == (0, said)
    assert predictions(folder) == list(arrays.predict([[20, 1.5], [50, 3.0]]))


def test_vectors_are_found_beside_other_columns(folder, run, arrays):
    folder.write("in.jsonl", [{"id": 1, "name": "x", "vector": [20, 1.5]}, {"id": 2, "name": "y", "vector": [50, 3.0]}])
    assert run(source="in.jsonl").err.endswith("--handler sklearn-numpy --columns vector\n")
    assert predictions(folder) == list(arrays.predict([[20, 1.5], [50, 3.0]]))


@pytest.mark.parametrize("header", ["id,a,b\n1,20,1.5\n", "a,b\nx,1.5\n"])
def test_which_columns_hold_the_numbers_has_to_be_said(folder, mistake, arrays, header):
    folder.write("in.csv", header)
    assert "takes 2 numbers and knows no names of columns; name what it takes with --columns, of " in mistake()


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("none.pkl", None, "--model: there is no file 'none.pkl'. If it is an id on a hub or at an endpoint, name its"),
        ("mode1.pkl", None, "there is no file 'mode1.pkl'; did you mean 'model.pkl'?"),
        ("model.bin", b"?", "--model model.bin: it is not clear what kind of model this is; name its handler with"),
        ("half.pkl", pickle.dumps([1, 2])[:-3], "--model half.pkl: it cannot be read as a pickle: "),
    ],
)
def test_what_cannot_be_known_has_to_be_named(folder, mistake, model, name, content, error):
    if content is not None:
        (folder.path / name).write_bytes(content)
    assert error in mistake(model=name)


def test_a_model_from_a_pipe_is_read_once(folder, run, mistake, model, popen):
    os.mkfifo(folder.path / "pipe")
    assert "--model: pipe can be read only once; name its handler with" in mistake(model="pipe")
    writer = popen(["cp", "model.pkl", "pipe"], cwd=folder.path)
    result = run("--handler", "sklearn-pandas", model="pipe")
    assert (result.code, writer.wait()) == (0, 0)


class Harmful:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("options", [[], ["--isolate"], ["--dry-run"]])
def test_judging_a_pickle_does_not_run_it(folder, mistake, options):
    folder.write("in.csv", ROWS)
    (folder.path / "model.pkl").write_bytes(pickle.dumps(Harmful()))
    assert "which does not show whether it takes frames or arrays; name the handler" in mistake(*options)


def test_a_resumed_run_goes_on_with_the_handler_named_or_not(folder, run, model):
    folder.write("in.csv", f"{ROWS}3,x,20,a,0\n")
    assert run("--resume", "--threshold", "0.1").code == 3
    result = run("--resume", "--threshold", "0.5", "--handler", "sklearn-pandas")
    assert (result.code, result.summary["done before"]) == (0, "3")


def test_dead_letters_are_retried_without_a_handler(folder, headrace, run, model):
    folder.write("in.csv", f"{ROWS}3,x,20,a,0\n")
    assert run().code == 0
    (letter,) = folder.rows("p.dead-letters.jsonl")
    row = {"id": 3, "income": 2.0, "age": 20, "city": "a", "label": 0}
    folder.write("p.dead-letters.jsonl", [{**letter, "row": row}])
    result = headrace("retry", "p.dead-letters.jsonl", "--model", "model.pkl", "--into", "p.jsonl")
    assert (result.code, result.err) == (0, f"{LINE}\n")
    assert [row["id"] for row in folder.rows("p.jsonl")] == [1, 2, 3]


def test_a_pipeline_of_texts_finds_its_column(folder, run):
    fitted = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good day", "bad night", "good"], [1, 0, 1])
    (folder.path / "model.pkl").write_bytes(pickle.dumps(fitted))
    texts = ["a good one", "", "bad", "Köln, good"]
    folder.write("in.jsonl", [{"id": number, "text": text} for number, text in enumerate([*texts, None])])
    result = run(source="in.jsonl")
    assert result.code == 0
    assert result.err.endswith("--handler sklearn-numpy --columns text\n")
    assert predictions(folder) == list(fitted.predict(texts))
    (letter,) = folder.rows("p.dead-letters.jsonl")
    assert letter["message"] == "column 'text' holds None, which is no text."


@pytest.mark.parametrize("isolate", [(), pytest.param(("--isolate",), marks=pytest.mark.large)])
def test_a_model_of_texts_refuses_a_column_of_numbers(folder, run, mistake, isolate):
    frame = pandas.DataFrame({"zip": ["00501", "10001", "20240", "94110"]})
    fitted = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(frame, [0, 1, 0, 1])
    (folder.path / "model.pkl").write_bytes(pickle.dumps(fitted))
    folder.write("in.csv", "zip\n10001\n20240\n94110\n")
    named = ("--handler", "sklearn-pandas", "--columns", "zip", *isolate)
    error = mistake(*named)
    assert "column 'zip' holds numbers, and the model was fitted on text there ('00501', " in error
    assert "add --types zip=str" in error
    assert run("--types", "zip=str", *named).code == 0
    assert predictions(folder) == [1, 0, 1]


@pytest.mark.large
def test_a_file_of_skops_is_read_and_not_trusted(folder, run):
    import skops.io

    folder.write("in.csv", ROWS)
    tree = DecisionTreeClassifier().fit(FRAME[["age", "income"]], LABELS)
    skops.io.dump(tree, folder.path / "model.skops")
    refused = run(model="model.skops")
    assert refused.code == 2
    assert "sklearn.tree._tree.Tree" in refused.err
    assert "trusted='[\"...\"]'" in refused.err
    assert run("--handler-arg", "trusted=sklearn.tree._tree.Tree", model="model.skops").code == 0
    assert predictions(folder) == [0, 1]


@pytest.mark.large
def test_the_only_text_is_taken_and_of_several_one_has_to_be_named(folder, run, mistake):
    folder.write("model/modules.json", "[]")
    folder.write("in.jsonl", [{"id": 1, "text": "a"}])
    for named in ([], ["--handler", "sentence-transformer"]):
        result = run("--dry-run", *named, source="in.jsonl", model="model")
        assert result.err == "model is a sentence-transformers model: --handler sentence-transformer --columns text\n"
    folder.write("in.jsonl", [{"id": "x", "text": "a"}])
    error = mistake("--dry-run", source="in.jsonl", model="model")
    assert "takes one text of a row and knows no names of columns; name what it takes with" in error
