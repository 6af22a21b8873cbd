"""Folders partitioned as Hive does it give columns to the rows of their files."""

import json
from operator import itemgetter

import pyarrow
import pyarrow.dataset
import pytest

from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.reading import infer_schema, read_rows
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from toys import Acting, each


def rows_of(*patterns):
    sources = match(patterns)
    types = infer_schema(sources).csv
    return [row for source in sources for row in read_rows(source, types)]


CSV = {
    "in/day=01/k=-5/a.csv": "n\n1\n",
    "in/day=02/a.csv": "n\n2\n",
    "in/day=%C3%A9%2F/k=__HIVE_DEFAULT_PARTITION__/a.csv": "n\n3\n",
    "in/_SUCCESS": "",
    "in/_temporary/day=03/a.csv": "n\n4\n",
    "in/day=01/.hidden.csv": "n\n5\n",
}
ROWS = [{"n": 3, "day": "é/", "k": None}, {"n": 1, "day": "01", "k": -5}, {"n": 2, "day": "02", "k": None}]


@pytest.mark.parametrize("pattern", ["in", "in/", "in/**/a.csv", "in/day=**/a.csv"])
def test_names_of_folders_are_columns(write, pattern):
    for name, content in CSV.items():
        if "temporary" not in name or "*" not in pattern:
            write(name, content)
    assert rows_of(pattern) == ROWS
    head = infer_schema(match([pattern]))
    assert (head.columns, head.types) == (("n", "day", "k"), {"n": "int", "day": "str", "k": "int"})


def test_folders_that_a_pattern_names_are_no_columns(write):
    for name, content in CSV.items():
        write(name, content)
    assert rows_of("in/day=02/a.csv") == [{"n": 2}]
    assert rows_of("in/day=01/**/a.csv") == [{"n": 1, "k": -5}]


def test_tables_of_arrow_and_columns_that_a_file_has_itself(tmp_path):
    table = pyarrow.table({"n": [1, 2, 3], "year": [2024, 2025, 2025]})
    schema = pyarrow.schema([("year", pyarrow.int64())])
    partitioning = pyarrow.dataset.partitioning(schema, flavor="hive")
    pyarrow.dataset.write_dataset(table, tmp_path / "in", format="parquet", partitioning=partitioning)
    assert sorted(rows_of(str(tmp_path / "in")), key=repr) == table.to_pylist()
    (tmp_path / "own" / "n=7").mkdir(parents=True)
    (tmp_path / "own" / "n=7" / "a.jsonl").write_text('{"n": 1}\n')
    assert rows_of(str(tmp_path / "own")) == [{"n": 1}]


@pytest.mark.parametrize("options", [{}, {"resume": {"job": 1}}], ids=str)
def test_runs_have_the_columns(write, tmp_path, options):
    for year in (2024, 2025):
        write(f"in/year={year}/a.csv", "n\n1\nx,y\n2\n")
    sources = match(["in"])
    head = infer_schema(sources)
    handler = Acting(each(itemgetter("year")))
    job = Job(handler, sources, str(tmp_path / "p.jsonl"), Examples(None, head.columns), head.csv, **options)
    report = Run(job).execute()
    assert (report.predictions, report.failed) == (4, 2)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows == [{"n": n, "year": year, "prediction": year} for year in (2024, 2025) for n in (1, 2)]
    letters = [json.loads(line) for line in (tmp_path / "p.dead-letters.jsonl").read_text().splitlines()]
    assert [letter["position"]["reading"]["keys"] for letter in letters] == [{"year": 2024}, {"year": 2025}]
