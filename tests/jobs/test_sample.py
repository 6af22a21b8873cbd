"""A sample of the input: how many rows there are, and which of them a pilot gets."""

from __future__ import annotations

import csv
import gzip
import json
import random
import statistics
from functools import cache

import pyarrow
import pyarrow.parquet
import pytest

from headrace.core.errors import ConfigurationError
from headrace.jobs import sample as module
from headrace.jobs.files import match
from headrace.jobs.sample import Sample

ROWS = 3000


@cache
def rows():
    drawn = random.Random(1)
    return [
        {"id": number, "text": "".join(drawn.choices("abcdé", k=int(drawn.lognormvariate(3, 1))))}
        for number in range(ROWS)
    ]


def write(path, content):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path, row_group_size=100)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, content[0])
            writer.writeheader()
            writer.writerows(content)
    else:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return str(path)


def read(paths):
    (path,) = paths
    if path.endswith(".parquet"):
        return pyarrow.parquet.read_table(path).to_pylist()
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        if ".csv" in path:
            return [{"id": int(row["id"]), "text": row["text"]} for row in csv.DictReader(file)]
        return [json.loads(line) for line in file]


def sample_of(*paths, seed=0):
    return Sample(match(paths), random.Random(seed))


@pytest.fixture(params=["jsonl", "csv", "parquet", "jsonl.gz"])
def path(request, tmp_path):
    return write(tmp_path / f"in.{request.param}", rows())


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return str(tmp_path / "out")


def test_a_sample_of_little_is_all_of_it_in_another_order_repeated_and_cut(path, out):
    found = sample_of(path)
    assert (found.rows, found.size, found.is_exact) == (ROWS, ROWS, True)
    again = read(found.write(out))
    assert again != rows()
    assert sorted(again, key=lambda row: row["id"]) == rows()
    mean = statistics.fmean(len(row["text"]) for row in rows())
    some = read(found.write(out, 1, slice(160)))  # a beginning has long and short rows as all have
    assert len(some) == 160
    assert statistics.fmean(len(row["text"]) for row in some) == pytest.approx(mean, rel=0.1)
    assert len(read(found.write(out, 3))) == 3 * ROWS
    halves = [{row["id"] for row in read(found.write(out, 1, slice(number, None, 2)))} for number in (0, 1)]
    assert not halves[0] & halves[1]
    assert len(halves[0] | halves[1]) == ROWS


def test_of_a_limited_run_only_the_rows_that_it_reads_are_sampled(path, tmp_path, out):
    other = write(tmp_path / "z.jsonl", rows())
    found = Sample(match([path, other]), random.Random(0), 50)
    assert (found.rows, found.size, found.is_exact) == (50, 50, True)
    assert sorted(row["id"] for row in read(found.write(out))) == list(range(50))
    assert Sample(match([path, other]), random.Random(0), ROWS + 7).rows == ROWS + 7


def test_much_is_sampled_from_everywhere_and_counted_or_estimated(path, out, monkeypatch):
    monkeypatch.setattr(module, "_BYTES", 20_000)
    found = sample_of(path)
    is_packed = path.endswith(".gz")  # what is read ahead of it counts
    assert found.rows == pytest.approx(ROWS, rel=0.6 if is_packed else 0)
    assert found.is_exact is not is_packed
    assert found.size < ROWS
    some = read(found.write(out))
    assert len({row["id"] for row in some}) == len(some) == found.size
    assert all(row in rows() for row in some)
    if not is_packed:
        assert max(row["id"] for row in some) > 0.8 * ROWS


def test_fields_of_several_lines_stay_whole(tmp_path, out, monkeypatch):
    content = [{"id": number, "text": f'one,\n"two" {number}\n'} for number in range(500)]
    path = write(tmp_path / "in.csv", content)
    assert sorted(read(sample_of(path).write(out)), key=lambda row: row["id"]) == content
    monkeypatch.setattr(module, "_BYTES", 4_000)
    some = read(sample_of(path).write(out))
    assert some
    assert all(row in content for row in some)


def test_files_of_one_kind_become_one(tmp_path, out):
    paths = [write(tmp_path / f"{number}.csv", rows()[number::3]) for number in range(3)]
    found = sample_of(*paths)
    assert found.rows == ROWS
    assert len(read(found.write(out))) == ROWS
    other = write(tmp_path / "other.csv", [{"text": "", "id": 1}])
    assert len(sample_of(*paths, other).write(out)) == 2


def test_of_very_many_files_some_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FILES", 3)
    paths = [write(tmp_path / f"{number}.jsonl", rows()[number::10]) for number in range(10)]
    found = sample_of(*paths)
    assert found.rows == pytest.approx(ROWS, rel=0.2)
    assert found.size < ROWS / 2
    assert not found.is_exact
    parquet = [write(tmp_path / f"{number}.parquet", rows()[number::10]) for number in range(10)]
    assert (sample_of(*parquet).rows, sample_of(*parquet).is_exact) == (ROWS, True)


def test_files_that_are_rows_are_chosen_by_size(tmp_path, out):
    for number in range(50):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * number)
    found = Sample(match([str(tmp_path / "*.bin")], "files"), random.Random(0))
    assert (found.rows, found.is_of_files) == (50, True)
    assert set(found.write(out)) == {str(tmp_path / f"{number}.bin") for number in range(50)}


def test_columns_of_folders_stay_columns_in_parquet(tmp_path, out):
    (tmp_path / "in" / "year=2024").mkdir(parents=True)
    write(tmp_path / "in" / "year=2024" / "a.parquet", rows())
    assert read(sample_of(str(tmp_path / "in")).write(out))[0]["year"] == 2024


def test_what_cannot_be_sampled_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigurationError, match="there are no rows"):
        sample_of(str(tmp_path / "empty.jsonl"))
    with pytest.raises(ConfigurationError, match="no pipe"):
        Sample(match(["-"], "jsonl"), random.Random(0))
    (tmp_path / "wrong.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigurationError, match=r"cannot read .*wrong.parquet as parquet"):
        sample_of(str(tmp_path / "wrong.parquet"))
