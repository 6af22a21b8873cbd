"""``headrace run`` without ``--handler``: the model's file decides, and its own names choose the columns."""

from __future__ import annotations

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


def run(headrace, *options, source="in.csv", output="p.jsonl", model="model.pkl"):
    return headrace("run", source, "--model", model, "--output", output, *options)


def test_the_file_decides_and_says_so(folder, headrace, model):
    result = run(headrace)
    assert (result.code, result.err) == (0, f"{LINE}\n")
    expected = list(model.predict(pandas.read_csv("in.csv")))
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == expected
    assert [row["id"] for row in folder.rows("p.jsonl")] == [1, 2]


def test_the_named_handler_gets_the_same_columns(folder, headrace, model):
    result = run(headrace, "--handler", "sklearn-pandas")
    assert (result.code, result.err) == (0, f"{LINE}\n")
    named = run(headrace, "--handler", "sklearn-pandas", "--columns", "age,city,income", output="q.jsonl")
    assert (named.code, named.err) == (0, "")
    assert folder.rows("p.jsonl") == folder.rows("q.jsonl")


@pytest.mark.parametrize("options", [[], ["--handler", "sklearn-pandas"]])
def test_chosen_columns_that_lack_what_the_model_wants_are_refused(folder, headrace, model, options):
    result = run(headrace, "--columns", "income,label", *options)
    assert (result.code, folder.names()) == (2, ["in.csv", "model.pkl"])
    assert "--columns: the model, a Pipeline of scikit-learn, wants 'age' (and 1 more), too; without" in result.error
    assert run(headrace, "--columns", "*").code == 0


@pytest.mark.parametrize("options", [[], ["--handler", "sklearn-pandas"]])
def test_a_column_that_the_input_lacks_is_one_error(folder, headrace, model, options):
    folder.write("in.csv", ROWS.replace("age", "Ages").replace("city", "town"))
    before = folder.names()
    result = run(headrace, *options)
    assert result.code == 2
    assert result.error == (
        "the model, a Pipeline of scikit-learn, wants a column 'age' (and 1 more that the input lacks), and the input "
        "has none; did you mean 'Ages'? Its columns are id, income, Ages, town, label."
    )
    assert folder.names() == before


def test_a_table_of_as_many_numbers_as_the_model_takes_needs_no_names(folder, headrace, arrays):
    folder.write("in.csv", "a,b\n20,1.5\n50,3.0\n")
    result = run(headrace)
    assert (result.code, result.err) == (
        0,
        "model.pkl is a LogisticRegression of scikit-learn: --handler sklearn-numpy\n",
    )
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == list(arrays.predict([[20, 1.5], [50, 3.0]]))


def test_vectors_are_found_beside_other_columns(folder, headrace, arrays):
    folder.write("in.jsonl", [{"id": 1, "name": "x", "vector": [20, 1.5]}, {"id": 2, "name": "y", "vector": [50, 3.0]}])
    result = run(headrace, source="in.jsonl")
    assert result.err.endswith("--handler sklearn-numpy --columns vector\n")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == list(arrays.predict([[20, 1.5], [50, 3.0]]))


@pytest.mark.parametrize("header", ["id,a,b\n1,20,1.5\n", "a,b\nx,1.5\n"])
def test_which_columns_hold_the_numbers_has_to_be_said(folder, headrace, arrays, header):
    folder.write("in.csv", header)
    result = run(headrace)
    assert result.code == 2
    assert "takes 2 numbers and knows no names of columns; name what it takes with --columns, of " in result.error


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("none.pkl", None, "--model: there is no file 'none.pkl'. If it is an id on a hub or at an endpoint, name its"),
        ("mode1.pkl", None, "there is no file 'mode1.pkl'; did you mean 'model.pkl'?"),
        ("model.bin", b"?", "--model model.bin: it is not clear what kind of model this is; name its handler with"),
        ("half.pkl", pickle.dumps([1, 2])[:-3], "--model half.pkl: it cannot be read as a pickle: "),
        ("dict.pkl", pickle.dumps({"a": 1}), "--model dict.pkl: it holds a dict, not a model; "),
        ("half.onnx", b"?", "--model half.onnx: it cannot be read as ONNX: "),
    ],
)
def test_what_cannot_be_known_has_to_be_named(folder, headrace, model, name, content, error):
    if content is not None:
        (folder.path / name).write_bytes(content)
    result = run(headrace, model=name)
    assert (result.code, result.out) == (2, "")
    assert error in result.error


def test_a_model_from_a_pipe_is_read_once(folder, headrace, model, popen):
    os.mkfifo(folder.path / "pipe")
    assert "--model: pipe can be read only once; name its handler with" in run(headrace, model="pipe").error
    writer = popen(["cp", "model.pkl", "pipe"], cwd=folder.path)
    result = run(headrace, "--handler", "sklearn-pandas", model="pipe")
    assert (result.code, writer.wait()) == (0, 0)


class Harmful:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("options", [[], ["--isolate"], ["--dry-run"]])
def test_judging_a_pickle_does_not_run_it(folder, headrace, options):
    folder.write("in.csv", ROWS)
    (folder.path / "model.pkl").write_bytes(pickle.dumps(Harmful()))
    result = run(headrace, *options)
    assert result.code == 2
    assert "which does not show whether it takes frames or arrays; name the handler" in result.error
    assert "harmed" not in folder.names()


def test_a_resumed_run_goes_on_with_the_handler_named_or_not(folder, headrace, model):
    folder.write("in.csv", f"{ROWS}3,x,20,a,0\n")
    assert run(headrace, "--resume", "--threshold", "0.1").code == 3
    result = run(headrace, "--resume", "--threshold", "0.5", "--handler", "sklearn-pandas")
    assert (result.code, result.summary["done before"]) == (0, "3")


def test_dead_letters_are_retried_without_a_handler(folder, headrace, model):
    folder.write("in.csv", f"{ROWS}3,x,20,a,0\n")
    assert run(headrace).code == 0
    letters = folder.rows("p.dead-letters.jsonl")
    letters[0]["row"] = {"id": 3, "income": 2.0, "age": 20, "city": "a", "label": 0}
    folder.write("p.dead-letters.jsonl", letters)
    result = headrace("retry", "p.dead-letters.jsonl", "--model", "model.pkl", "--into", "p.jsonl")
    assert (result.code, result.err) == (0, f"{LINE}\n")
    assert [row["id"] for row in folder.rows("p.jsonl")] == [1, 2, 3]


def test_a_pipeline_of_texts_finds_its_column(folder, headrace):
    fitted = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good day", "bad night", "good"], [1, 0, 1])
    (folder.path / "model.pkl").write_bytes(pickle.dumps(fitted))
    texts = ["a good one", "", "bad", "Köln, good"]
    rows = [{"id": number, "text": text} for number, text in enumerate([*texts, None])]
    folder.write("in.jsonl", rows)
    result = run(headrace, source="in.jsonl")
    assert result.code == 0
    assert result.err.endswith("--handler sklearn-numpy --columns text\n")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == list(fitted.predict(texts))
    (letter,) = folder.rows("p.dead-letters.jsonl")
    assert letter["message"] == "column 'text' holds None, which is no text."


@pytest.mark.large
def test_a_file_of_skops_is_read_and_not_trusted(folder, headrace):
    import skops.io

    folder.write("in.csv", ROWS)
    tree = DecisionTreeClassifier().fit(FRAME[["age", "income"]], LABELS)
    skops.io.dump(tree, folder.path / "model.skops")
    refused = run(headrace, model="model.skops")
    assert refused.code == 2
    assert "sklearn.tree._tree.Tree" in refused.err
    assert "trusted='[\"...\"]'" in refused.err
    result = run(headrace, "--handler-arg", "trusted=sklearn.tree._tree.Tree", model="model.skops")
    assert result.code == 0
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [0, 1]


@pytest.mark.large
def test_the_only_text_is_taken_and_of_several_one_has_to_be_named(folder, headrace):
    folder.write("model/modules.json", "[]")
    folder.write("in.jsonl", [{"id": 1, "text": "a"}])
    for named in ([], ["--handler", "sentence-transformer"]):
        result = run(headrace, "--dry-run", *named, source="in.jsonl", model="model")
        assert result.err == "model is a sentence-transformers model: --handler sentence-transformer --columns text\n"
    folder.write("in.jsonl", [{"id": "x", "text": "a"}])
    result = run(headrace, "--dry-run", source="in.jsonl", model="model")
    assert "takes one text of a row and knows no names of columns; name what it takes with" in result.error


@pytest.mark.large
def test_doctor_takes_a_model_alone(folder, headrace, model):
    result = headrace("doctor", "--model", "model.pkl", "--rows", "in.csv", "--json")
    assert result.code == 0
    assert '"handler": "sklearn-pandas"' in result.out
