"""The share of the input that is done follows the rows that are answered, whatever is read ahead of them."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from headrace.jobs import opening
from headrace.jobs.files import known_size, match
from headrace.jobs.job import Job
from headrace.jobs.letters import match_dead_letters
from headrace.jobs.opening import InputShare
from headrace.jobs.reading import RowRanges, infer_schema, read_blocks
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from toys import Acting

ROWS = [{"a": n, "b" if n % 3 else "c": f"row {n}"} for n in range(900)]


def share_of(path, content, done=RowRanges()):
    """Reads a file with such a content as a run does; returns the share, and how many rows were read."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"a": range(content)}), path, row_group_size=100)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content)
    (source,) = match([str(path)])
    share = InputShare({source.path: known_size(source)})
    return share, sum(map(len, read_blocks(source, 0, infer_schema([source]).csv, done)))


LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "a,b\n" + "".join(f'{n},"two\nlines"\n' if n % 2 else f'{n},one "more\n' for n in range(900))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.jsonl", LINES),
        ("in.jsonl.gz", LINES),
        ("in.csv", "a,b\n" + "1,2\n" * 900),
        ("mixed.csv", CSV),
        ("in.parquet", 900),
    ],
)
def test_the_share_grows_with_the_rows(tmp_path, name, content):
    share, rows = share_of(tmp_path / name, content)
    assert rows == 900
    seen = [share.at(done) for done in range(0, 900, 30)]
    assert seen == sorted(seen)
    assert seen == pytest.approx([done / 900 for done in range(0, 900, 30)], abs=0.02)
    assert share.at(900) == 0.999  # while the run is at work


def test_rows_of_an_earlier_run_are_done_from_the_start(tmp_path):
    share, rows = share_of(tmp_path / "in.parquet", 900, RowRanges([0], [300]))
    assert rows == 600
    share.earlier_rows = 300
    assert share.at(0) == pytest.approx(1 / 3)
    assert share.at(300) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("line", "sources_of", "runner"),
    [
        ('{"a": 1}\n', match, None),
        ('{"row": {"a": 1}, "stage": "inference", "message": "m"}\n', match_dead_letters, "FnApiRunner"),
    ],
    ids=["rows", "letters"],
)
def test_a_run_follows_its_share(tmp_path, line, sources_of, runner, monkeypatch):
    def share(batch):
        """Of the input that is done before each batch."""
        before = opening.rows_of_test
        opening.rows_of_test += len(batch)
        return [opening.share_of_test.at(before)] * len(batch)

    (tmp_path / "in.jsonl").write_text(line * 100)
    handler, sources = Acting(share, min_batch_size=10, max_batch_size=10), sources_of([str(tmp_path / "in.jsonl")])
    run = Run(Job(handler, sources, str(tmp_path / "out.jsonl"), Examples(None, ("a",)), runner=runner))
    monkeypatch.setattr(opening, "share_of_test", run.share, raising=False)
    monkeypatch.setattr(opening, "rows_of_test", 0, raising=False)
    assert run.execute().predictions == 100
    shares = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert shares[::10] == pytest.approx([part / 10 for part in range(10)])
    assert run.share.at(100) == 0.999


def test_a_limit_is_the_whole_and_nobody_knows_that_of_a_pipe():
    assert InputShare({"a.csv": 100, "-": None}).at(5) is None
    share = InputShare({"a.csv": None}, limit=200)
    assert [share.at(rows) for rows in (0, 50, 100, 200)] == [None, 0.25, 0.5, 0.999]
