"""Rows that a handler skips are in neither file but are counted, so that all rows add up."""

import sys

import pytest

HANDLER = '''
import os
import time

import headrace
from headrace.jobs import parts

parts._SYNC_SECONDS = 0.05


class Choosy(headrace.ModelHandler):
    """Notes in a file which rows it sees; skips some in each of the ways that there are, and cannot do others."""

    def load_model(self):
        return "log"

    def run_inference(self, batch, path, inference_args=None):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if any(row["n"] % 13 == 7 for row in batch):
            raise ValueError("poison")
        with open(path, "a") as log:
            log.write("".join(f"{row['n']}\\n" for row in batch))
        return [headrace.PredictionResult(row, headrace.SKIP if row["n"] % 3 == 0 else row["n"]) for row in batch]


def before(row):
    return headrace.SKIP if row["n"] % 5 == 0 else row


def after(result):
    return headrace.SKIP if result.inference % 4 == 0 else result.inference


def choosy():
    return Choosy().with_preprocess_fn(before).with_postprocess_fn(after)
'''
COUNT = 300
ROWS = [{"n": n} for n in range(COUNT)]
MODEL = [n for n in range(COUNT) if n % 5]
BAD = [n for n in MODEL if n % 13 == 7]
GOOD = [n for n in MODEL if n not in BAD and n % 3 and n % 4]
FIGURES = {"rows": len(ROWS), "predictions": len(GOOD), "dead letters": len(BAD)}
FIGURES["skipped"] = FIGURES["rows"] - FIGURES["predictions"] - FIGURES["dead letters"]


@pytest.fixture
def work(folder, monkeypatch):
    """A file of rows, and the handlers."""
    folder.write("choosy.py", HANDLER)
    monkeypatch.syspath_prepend(str(folder.path))
    folder.write("in.jsonl", ROWS)
    yield folder
    sys.modules.pop("choosy", None)


def arguments(handler="choosy", *options):
    return "run", "in.jsonl", "--handler", f"choosy:{handler}", "--keep=n", "--output", "p.jsonl", *options


def check(folder, result, **figures):
    assert result.code == 0, result.err
    expected = {**FIGURES, **figures}
    assert {name: int(result.summary[name]) for name in expected} == expected
    assert [(row["n"], row["prediction"]) for row in folder.rows("p.jsonl")] == [(n, n) for n in GOOD]
    assert sorted(letter["row"]["n"] for letter in folder.rows("p.dead-letters.jsonl")) == BAD


@pytest.mark.parametrize("options", [(), ("--resume",), ("--isolate",)], ids=str)
def test_rows_in_equal_predictions_dead_letters_and_skips(work, headrace, options):
    check(work, headrace(*arguments("choosy", "--max-batch-size=7", *options)))
    assert not [n for n in map(int, (work.path / "log").read_text().split()) if n % 5 == 0]
