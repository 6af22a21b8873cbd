"""A column says how long rows are; batches are of rows of similar length, and the output keeps their order."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from headrace.jobs.files import match
from headrace.jobs.job import CancelledError, Job
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from toys import Acting

pytestmark = pytest.mark.usefixtures("module_travels")

ROWS = [
    {"id": 0, "size": 9, "text": "a b c d e"},
    {"id": 1, "size": 1, "text": "a"},
    {"id": 2, "size": 8, "text": "a b c d"},
    {"id": 3, "size": None, "text": None},
]


def neighbours(batch):
    return [list(batch)] * len(batch)


@pytest.fixture
def make(tmp_path):
    """A run over rows in batches of two."""

    def run(rows, name="in.jsonl", act=neighbours, **options):
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
        else:
            (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        job = Job(
            handler=Acting(act),
            sources=match([str(tmp_path / name)]),
            output=str(tmp_path / "out.jsonl"),
            examples=Examples(("id",), tuple(rows[0])),
            batch_sizes={"min_batch_size": 2, "max_batch_size": 2},
            **options,
        )
        return Run(job)

    return run


def predictions_of(run):
    """By ``id``, in the order of the output."""
    assert run.execute().failed == 0
    rows = map(json.loads, Path(run.job.output).read_text().splitlines())
    return {row["id"]: row["prediction"] for row in rows}


@pytest.mark.parametrize(
    ("name", "column", "how"),
    [
        ("in.jsonl", "size", {}),
        ("in.parquet", "text", {}),
        ("in.jsonl", "text", {"isolate": True}),
        ("in.parquet", "size", {"runner": "FnApiRunner"}),
    ],
    ids=str,
)
def test_rows_of_similar_length_share_a_batch(make, name, column, how):
    found = predictions_of(make(ROWS, name, length_column=column, **how))
    assert list(found.items()) == [(0, [0, 2]), (1, [1, 3]), (2, [0, 2]), (3, [1, 3])]


def test_rows_without_the_column_are_short(make):
    rows = [{"id": 0}, {"id": 1, "size": 5}, {"id": 2}, {"id": 3, "size": "a text that is longer"}]
    found = predictions_of(make(rows, length_column="size"))
    assert list(found.values()) == [[0, 2], [3, 1], [0, 2], [3, 1]]


def test_cancelled_run_ends_between_the_batches_that_were_sorted_together(make):
    batches = []

    def cancel(batch):
        batches.append(batch)
        run.cancel()
        return batch

    run = make(ROWS * 10, act=cancel, length_column="size")
    with pytest.raises(CancelledError):
        run.execute()
    assert len(batches) < 4
    assert not Path(run.job.output).exists()
