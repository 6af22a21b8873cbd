"""The share of the input that is done follows the rows that are answered, whatever is read ahead of them."""

import gzip
import json
from itertools import chain

import pyarrow
import pyarrow.parquet
import pytest

from headrace.core.handler import ModelHandler
from headrace.jobs import opening
from headrace.jobs.files import known_size, match
from headrace.jobs.job import Job
from headrace.jobs.letters import match_dead_letters, schema_of_letters
from headrace.jobs.opening import InputShare
from headrace.jobs.reading import infer_schema, read_blocks
from headrace.jobs.row_ranges import RowRanges
from headrace.jobs.run import Run
from headrace.rows.examples import Examples

ROWS = [{"a": n, "b" if n % 3 else "c": f"row {n}"} for n in range(900)]


@pytest.fixture
def share_of(tmp_path):
    """Reads files as a run does; returns the share, and how many rows were read."""

    def read(*names, done=None):
        sources = match([str(tmp_path / name) for name in names])
        types = infer_schema(sources).csv
        share = InputShare({source.path: known_size(source) for source in sources})
        blocks = (read_blocks(source, index, types, done or RowRanges()) for index, source in enumerate(sources))
        return share, sum(map(len, chain.from_iterable(blocks)))

    def write(name, content):
        path = tmp_path / name
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.table({"a": range(content)}), path, row_group_size=100)
        elif name.endswith(".gz"):
            path.write_bytes(gzip.compress(content.encode()))
        else:
            path.write_text(content)

    read.write = write
    return read


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
def test_the_share_grows_with_the_rows(share_of, name, content):
    share_of.write(name, content)
    share, rows = share_of(name)
    assert rows == 900
    seen = [share.at(done) for done in range(0, 900, 30)]
    assert seen == sorted(seen)
    assert seen == pytest.approx([done / 900 for done in range(0, 900, 30)], abs=0.02)
    assert share.at(900) == 0.999  # while the run is at work


def test_rows_of_an_earlier_run_are_done_from_the_start(share_of):
    share_of.write("in.parquet", 900)
    done = RowRanges([0], [300])
    share, rows = share_of("in.parquet", done=done)
    assert rows == 600
    share.earlier_rows = 300
    assert share.at(0) == pytest.approx(1 / 3)
    assert share.at(300) == pytest.approx(2 / 3)


def test_nobody_knows_the_share_of_a_pipe():
    assert InputShare({"a.csv": 100, "-": None}).at(5) is None


class Watching(ModelHandler):
    """Predicts the share of the input that is done before each batch."""

    def __init__(self):
        super().__init__(min_batch_size=10, max_batch_size=10)
        self.done = 0

    def load_model(self):
        return lambda: opening.share_of_test.at(self.done)

    def run_inference(self, batch, model, inference_args=None):
        share = model()
        self.done += len(batch)
        return [share] * len(batch)


@pytest.mark.parametrize(("kind", "runner"), [("rows", None), ("letters", "FnApiRunner")])
def test_a_run_follows_its_share(share_of, tmp_path, kind, runner, monkeypatch):
    if kind == "rows":
        share_of.write("in.jsonl", '{"a": 1}\n' * 100)
        sources = match([str(tmp_path / "in.jsonl")])
        columns = infer_schema(sources).columns
    else:
        share_of.write("in.jsonl", '{"row": {"a": 1}, "stage": "inference", "message": "m"}\n' * 100)
        sources = match_dead_letters([str(tmp_path / "in.jsonl")])
        columns = schema_of_letters(sources, {}).columns
    run = Run(Job(Watching(), sources, str(tmp_path / "out.jsonl"), Examples(None, columns), runner=runner))
    monkeypatch.setattr(opening, "share_of_test", run.share, raising=False)
    assert run.execute().predictions == 100
    shares = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert shares[::10] == pytest.approx([part / 10 for part in range(10)])
    assert run.share.at(100) == 0.999


def test_a_limit_is_the_whole():
    share = InputShare({"a.csv": None}, limit=200)
    assert [share.at(rows) for rows in (0, 50, 100, 200)] == [None, 0.25, 0.5, 0.999]
