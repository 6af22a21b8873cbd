"""Rows that a handler skips are in neither file but are counted, so that all rows add up."""

import pytest

HANDLER = """
import headrace


class Choosy(headrace.ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        assert all(row["n"] % 5 and row["n"] % 13 != 7 for row in batch)
        return [headrace.PredictionResult(row, headrace.SKIP if row["n"] % 3 == 0 else row["n"]) for row in batch]


def choosy():
    before = lambda row: row if row["n"] % 5 else headrace.SKIP
    return Choosy().with_preprocess_fn(before).with_postprocess_fn(after)


def after(result):
    return result.inference if result.inference % 4 else headrace.SKIP
"""
ROWS = range(300)
BAD = [n for n in ROWS if n % 5 and n % 13 == 7]
GOOD = [n for n in ROWS if n % 5 and n % 3 and n % 4 and n not in BAD]


@pytest.mark.parametrize("options", [(), ("--resume",), ("--isolate",)], ids=str)
def test_rows_in_equal_predictions_dead_letters_and_skips(own, headrace, options):
    own.write("choosy.py", HANDLER)
    own.write("in.jsonl", [{"n": n} for n in ROWS])
    arguments = ("--handler", "choosy:choosy", "--keep=n", "--max-batch-size=7", "--output", "p.jsonl")
    result = headrace("run", "in.jsonl", *arguments, *options)
    assert result.code == 0, result.err
    figures = {"rows": 300, "predictions": len(GOOD), "dead letters": len(BAD), "skipped": 300 - len(GOOD) - len(BAD)}
    assert {name: int(result.summary[name]) for name in figures} == figures
    assert [(row["n"], row["prediction"]) for row in own.rows("p.jsonl")] == [(n, n) for n in GOOD]
    assert sorted(letter["row"]["n"] for letter in own.rows("p.dead-letters.jsonl")) == BAD
