"""``--explode``: predictions of several values become several columns, in every format and after a resume."""

import csv

import pytest

HANDLER = """
import headrace


class Several(headrace.ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [{"half": row["a"] / 2, "list": [row["a"]]} if row["a"] < 3 else row["a"] for row in batch]
"""


@pytest.fixture
def run(own, headrace):
    own.write("several_values.py", HANDLER)
    own.write("in.jsonl", [{"a": number} for number in range(1, 4)])

    def call(*more):
        return headrace("run", "in.jsonl", "--handler", "several_values:Several", "--explode", *more)

    return call


@pytest.mark.parametrize("more", [(), ("--resume",), ("--isolate",)])
def test_values_have_columns_of_their_own(run, folder, more):
    assert run("--output", "p.jsonl", *more).code == 0
    assert folder.rows("p.jsonl") == [
        {"a": 1, "prediction_half": 0.5, "prediction_list": [1]},
        {"a": 2, "prediction_half": 1.0, "prediction_list": [2]},
        {"a": 3, "prediction": 3},
    ]
    assert run("--output", "p.csv", *more).code == 0
    with open(folder.path / "p.csv") as file:
        assert list(csv.DictReader(file)) == [
            {"a": "1", "prediction_half": "0.5", "prediction_list": "[1]", "prediction": ""},
            {"a": "2", "prediction_half": "1.0", "prediction_list": "[2]", "prediction": ""},
            {"a": "3", "prediction_half": "", "prediction_list": "", "prediction": "3"},
        ]


def test_columns_of_the_input_are_not_replaced(run, folder):
    folder.write("in.jsonl", [{"a": 1, "prediction_half": 5}])
    result = run("--output", "p.jsonl")
    assert (result.code, "there is a column 'prediction_half'" in result.error) == (2, True)
    assert run("--output", "p.jsonl", "--keep", "a").code == 0
