"""A column says how long rows are; batches are of rows of similar length, and the output keeps their order."""

from __future__ import annotations

import json

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
def run(tmp_path):
    """Runs over rows in batches of two; the rows of the output."""

    def execute(rows, name="in.jsonl", **options):
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
        else:
            (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        job = Job(
            handler=Acting(neighbours),
            sources=match([str(tmp_path / name)]),
            output=str(tmp_path / "out.jsonl"),
            examples=Examples(("id",), tuple(rows[0])),
            batch_sizes={"min_batch_size": 2, "max_batch_size": 2},
            **options,
        )
        assert Run(job).execute().failed == 0
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    return execute


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
def test_rows_of_similar_length_share_a_batch(run, name, column, how):
    found = run(ROWS, name, length_column=column, **how)
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    assert [row["prediction"] for row in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_rows_are_in_order_of_arrival_without_the_column(run):
    assert [row["prediction"] for row in run(ROWS)] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_rows_without_the_column_are_short(run):
    rows = [{"id": 0}, {"id": 1, "size": 5}, {"id": 2}, {"id": 3, "size": "a text that is longer"}]
    assert [row["prediction"] for row in run(rows, length_column="size")] == [[0, 2], [3, 1], [0, 2], [3, 1]]


def test_cancelled_run_ends_between_the_batches_that_were_sorted_together(tmp_path):
    batches = []

    def cancel(batch):
        batches.append(batch)
        run.cancel()
        return batch

    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS * 10))
    run = Run(
        Job(
            handler=Acting(cancel),
            sources=match([str(tmp_path / "in.jsonl")]),
            output=str(tmp_path / "out.jsonl"),
            batch_sizes={"min_batch_size": 2, "max_batch_size": 2},
            length_column="size",
        )
    )
    with pytest.raises(CancelledError):
        run.execute()
    assert len(batches) < 4
    assert not (tmp_path / "out.jsonl").exists()
