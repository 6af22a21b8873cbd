"""Rows that failed are put into their output, run after run, until it is complete."""

import json
import os
import random
from dataclasses import replace

import pyarrow.parquet
import pytest

from headrace import SKIP
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.letters import match_dead_letters
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from toys import Acting


class Choosy(Acting):
    """Fails for some numbers, before the model or in it, and skips those below zero."""

    def __init__(self, bad, early):
        super().__init__(max_batch_size=7)
        self.bad, self.early = bad, early

    def example_from_row(self, row):
        if row["n"] in self.early:
            raise ValueError("too early")
        return row["n"]

    def run_inference(self, batch, model, inference_args=None):
        if self.bad.intersection(batch):
            raise ValueError("bad")
        return [SKIP if number < 0 else number for number in batch]


def numbers(path):
    if path.endswith(".parquet"):
        return pyarrow.parquet.read_table(path).column("n").to_pylist()
    with open(path, "rb") as file:
        return [json.loads(line)["n"] for line in file]


@pytest.mark.parametrize("seed", range(12))
def test_rows_come_into_the_order_of_the_input_however_many_runs_it_takes(tmp_path, seed):
    random.seed(seed)
    sources, everything = [], []
    for name in "abc":
        rows = random.choice([0, 1, 30])
        some = [random.choice([len(everything) + number, -1]) for number in range(rows)]
        everything += some
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"n": number}) + "\n" for number in some) or "\n")
        sources.append(str(tmp_path / f"{name}.jsonl"))
    output = str(tmp_path / f"p.{random.choice(['jsonl', 'parquet'])}")
    letters = str(tmp_path / f"q.{random.choice(['jsonl', 'parquet'])}")
    expected = [number for number in everything if number >= 0]
    share, files, into = 0.7, match(sources), False
    for _ in range(20):
        bad, early = ({number for number in expected if random.random() < share} for _ in range(2))
        resume = {"job": 1} if random.random() < 0.5 else None
        handler = Choosy(bad, early)
        job = Job(handler, files, output, Examples(all_columns=("n",)), dead_letters=letters, threshold=1, into=into)
        report = Run(replace(job, resume=resume)).execute()
        assert os.path.exists(letters) is bool(report.failed)
        if not report.failed:
            break
        there = numbers(output) if report.predictions or into else []
        assert there == [number for number in expected if number in set(there)]
        assert len(there) + report.failed == len(expected)
        share, files, into = share / 2 if share > 0.1 else 0, match_dead_letters([letters]), True
    assert (numbers(output) if expected else []) == expected
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.jsonl", "c.jsonl", os.path.basename(output)]
