"""What an output has for a prediction of several values, and for rows that a handler skips, also after a resume."""

from functools import partial

import pytest

SEVERAL = """
import headrace


class Several(headrace.ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [{"half": row["a"] / 2, "list": [row["a"]]} if row["a"] < 3 else row["a"] for row in batch]
"""


@pytest.fixture
def explode(own, run):
    own.write("several_values.py", SEVERAL)
    own.write("in.jsonl", [{"a": number} for number in range(1, 4)])
    return partial(run, "--explode", handler="several_values:Several")


@pytest.mark.parametrize("more", [(), ("--resume",), ("--isolate",)])
def test_values_have_columns_of_their_own(explode, folder, more):
    assert explode(*more).code == 0
    assert folder.rows("p.jsonl") == [
        {"a": 1, "prediction_half": 0.5, "prediction_list": [1]},
        {"a": 2, "prediction_half": 1.0, "prediction_list": [2]},
        {"a": 3, "prediction": 3},
    ]


def test_values_have_columns_of_csv(explode, folder):
    assert explode("--output", "p.csv").code == 0
    assert (folder.path / "p.csv").read_text().splitlines() == [
        "a,prediction_half,prediction_list,prediction",
        '1,0.5,"[1]",',
        '2,1.0,"[2]",',
        "3,,,3",
    ]


def test_columns_of_the_input_are_not_replaced(explode, mistake, folder):
    folder.write("in.jsonl", [{"a": 1, "prediction_half": 5}])
    assert "there is a column 'prediction_half'" in mistake("--explode", handler="several_values:Several")
    assert explode("--keep", "a").code == 0


CHOOSY = """
import headrace


class Choosy(headrace.ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        assert all(row["n"] % 13 != 7 for row in batch)
        return [headrace.SKIP if row["n"] % 3 == 0 else row["n"] for row in batch]
"""
ROWS = range(300)
BAD = [n for n in ROWS if n % 13 == 7]
GOOD = [n for n in ROWS if n % 3 and n not in BAD]


@pytest.mark.parametrize("options", [(), ("--resume",), ("--isolate",)], ids=str)
def test_rows_in_equal_predictions_dead_letters_and_skips(own, run, options):
    own.write("choosy.py", CHOOSY)
    own.write("in.jsonl", [{"n": n} for n in ROWS])
    result = run("--max-batch-size=7", *options, handler="choosy:Choosy")
    assert result.code == 0, result.err
    figures = {"rows": 300, "predictions": len(GOOD), "dead letters": len(BAD), "skipped": 300 - len(GOOD) - len(BAD)}
    assert {name: int(result.summary[name]) for name in figures} == figures
    assert [(row["n"], row["prediction"]) for row in own.rows("p.jsonl")] == [(n, n) for n in GOOD]
    assert sorted(letter["row"]["n"] for letter in own.rows("p.dead-letters.jsonl")) == BAD
