"""A model gets the types that its source states; those of CSV columns are decided once, or set with --types."""

import pickle
import shlex

import pandas
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

ZIPS = ["00501", "10001", "2024", "1E5", "94110", "60601"]
FRAME = pandas.DataFrame(
    {
        "zip": [ZIPS[n % 6] for n in range(60)],
        "age": [20 + n % 7 for n in range(60)],
        "active": [n % 4 == 1 for n in range(60)],
        "plan": pandas.Categorical([("free", "pro")[n % 5 == 0] for n in range(60)]),
    }
)


@pytest.fixture(scope="module")
def model():
    coded = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((coded, ["zip", "active", "plan"]), (StandardScaler(), ["age"]))
    return make_pipeline(columns, LogisticRegression(C=100)).fit(FRAME, [n % 6 < 3 for n in range(60)])


@pytest.fixture
def run(folder, headrace, model):
    (folder.path / "model.pkl").write_bytes(pickle.dumps(model))
    arguments = ("--handler", "sklearn-pandas", "--model", "model.pkl", "--output", "p.jsonl")
    return lambda *inputs: headrace("run", *inputs, *arguments)


WRITERS = {
    "in.csv": lambda frame, path: frame.to_csv(path, index=False),
    "in.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "in.parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_texts_of_digits_stay_texts_in_files(folder, run, model, name):
    WRITERS[name](FRAME, folder.path / name)
    assert run(name).code == 0
    rows = folder.rows("p.jsonl")
    assert [row["prediction"] for row in rows] == model.predict(FRAME).tolist()
    assert [(row["zip"], row["active"]) for row in rows] == list(zip(FRAME["zip"], FRAME["active"], strict=True))


def test_the_option_that_a_message_names_can_be_given(folder, headrace, handlers):
    folder.write("in.csv", '"a, [b]",n\n1,1\n2,2\n3,3\nx,4\n')
    run = ("run", "in.csv", "--handler", f"{handlers}:bare", "--columns", "n", "--output", "p.jsonl")
    assert headrace(*run).code == 0
    (letter,) = folder.rows("p.dead-letters.jsonl")
    option, given = shlex.split(letter["message"].partition("add ")[2])
    retry = ("retry", "p.dead-letters.jsonl", *run[2:-1], "q.jsonl")
    wrong = headrace(*retry, option, "absent=str")
    assert (wrong.code, "--types: there is no column 'absent'" in wrong.err) == (2, True)
    assert headrace(*retry, option, given).code == 0
    assert headrace(*run, option, given).code == 0
    assert folder.rows("q.jsonl") == folder.rows("p.jsonl")[3:] == [{"a, [b]": "x", "n": 4, "prediction": 4}]


@pytest.mark.parametrize("isolate", [(), pytest.param(("--isolate",), marks=pytest.mark.large)])
def test_a_model_of_texts_refuses_a_column_of_numbers(folder, run, isolate):
    FRAME[FRAME["zip"].isin(["10001", "94110"])].to_csv(folder.path / "in.csv", index=False)
    refused = run("in.csv", *isolate)
    assert (refused.code, folder.names()) == (2, ["in.csv", "model.pkl"])
    assert "column 'zip' holds numbers, and the model was fitted on text there ('00501', " in refused.err
    assert "add --types zip=str" in refused.err
    assert run("in.csv", "--types", "zip=str", *isolate).code == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("n=integer", "--types: 'n=integer' names no type; did you mean 'int'?"),
        ("n", "--types: 'n' names no type; it takes COLUMN=TYPE."),
        ("m=int", "--types: there is no column 'm'"),
        ("n=int,n=float", "--types: column 'n' is float and int; choose one."),
    ],
)
def test_types_that_there_are_not(folder, headrace, handlers, asked, message):
    folder.write("in.csv", "n\n1\n")
    refused = headrace("run", "in.csv", "--handler", f"{handlers}:Add", "--output", "p.jsonl", "--types", asked)
    assert (refused.code, message in refused.err) == (2, True)


@pytest.mark.parametrize("given", ['"zip=str,when=date"', '{zip = "str", when = "date"}'])
def test_types_come_from_headrace_toml(folder, headrace, handlers, given):
    folder.write("in.csv", "when,zip,on\n2024-02-29,10001,True\n2024-03-01,10002,False\n")
    folder.write("headrace.toml", f"[run]\ntypes = {given}\n")
    assert (
        headrace("run", "in.csv", "--handler", f"{handlers}:bare", "--columns", "on", "--output", "p.jsonl").code == 0
    )
    first, second = folder.rows("p.jsonl")
    assert first == {"when": "2024-02-29", "zip": "10001", "on": True, "prediction": True}
    assert second["on"] is False


def test_other_files_state_their_types(folder, headrace, handlers):
    folder.write("in.jsonl", [{"n": 1}])
    refused = headrace("run", "in.jsonl", "--handler", f"{handlers}:Add", "--output", "p.jsonl", "--types", "n=str")
    assert (refused.code, "--types sets the types of CSV files" in refused.err) == (2, True)
