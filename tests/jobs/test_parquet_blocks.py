"""Rows of Parquet files: each as it is, or a row that cannot be read, alike in columns and row by row."""

import datetime
import json

import pyarrow
import pyarrow.parquet
import pytest

from headrace.core.errors import ConfigurationError
from headrace.jobs.files import match
from headrace.jobs.reading import infer_schema, read_rows
from tables_of_all_types import parquet


@pytest.mark.since_beam("2.77", reason="the pyarrow of older versions cannot write what a file says of its writer")
@pytest.mark.parametrize(
    ("count", "unit", "writer", "value"),
    [
        (253_402_300_799_999_999, "us", "org.apache.spark.version", datetime.datetime.max),
        (1_000_000_001, "ns", "another", "1970-01-01 00:00:01.000000001"),
    ],
)
def test_moments_of_96_bits_are_of_any_year_where_spark_wrote_them(tmp_path, count, unit, writer, value):
    table = pyarrow.table({"when": pyarrow.array([count], pyarrow.timestamp(unit))})
    path = tmp_path / "a.parquet"
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    with pyarrow.parquet.ParquetWriter(path, table.schema, **options) as file:
        file.write_table(table)
        file.add_key_value_metadata({writer: "3.5.1"})
    assert list(read_rows(match([str(path)])[0], {})) == [{"when": value}]


TEXTS = pyarrow.array([b"x", b"\xff\xfe", "é".encode()]).view(pyarrow.string())
DAYS = pyarrow.array([0, 10**7, 1], pyarrow.int32()).cast(pyarrow.date32())


@pytest.mark.parametrize(
    ("column", "error"),
    [
        (TEXTS, "UnicodeDecodeError"),
        (TEXTS.cast(pyarrow.large_string()), "UnicodeDecodeError"),
        (pyarrow.ListArray.from_arrays([0, 1, 2, 3], TEXTS), "UnicodeDecodeError"),
        (pyarrow.StructArray.from_arrays([DAYS], ["day"]), "OverflowError"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_a_value_that_python_does_not_have_costs_its_row(tmp_path, both_ways, output, column, error):
    path = parquet(tmp_path / "a.parquet", a=[1.0, 2.0, 3.0], b=[1, 2, 3], odd=column)
    _, letters, predictions, counts = both_ways(path, output=output)
    assert (predictions, counts) == (2, {("reading", error): 1})
    assert letters[0]["row"]["line_number"] == 2


def test_nanoseconds_are_the_same_text_everywhere(tmp_path, both_ways):
    counts = [1, 1000, None, 1_234_567_890_123_456_789]
    kinds = {"moment": pyarrow.timestamp("ns", "Europe/Berlin"), "time": pyarrow.time64("ns")}
    kinds["length"] = pyarrow.duration("ns")
    columns = {name: pyarrow.array([n and n % (86_400 * 10**9) for n in counts], kind) for name, kind in kinds.items()}
    path = parquet(tmp_path / "a.parquet", a=[1.0, 13.0, 13.0, 2.0], b=[1, 2, 3, 4], **columns)
    content, letters, _, _ = both_ways(path)
    found = [json.loads(line) for line in content.splitlines()]
    assert found[0]["moment"] == "1970-01-01 00:00:00.000000001Z"
    assert (found[0]["time"], found[0]["length"]) == ("00:00:00.000000001", "1")
    assert found[1]["time"] == "23:31:30.123456789"
    whole, none = (letter["row"] for letter in letters)
    assert whole["moment"] == "1970-01-01T01:00:00.000001+01:00"
    assert (whole["time"], whole["length"]) == ("00:00:00.000001", "P0DT0H0M0.000001S")
    assert none["length"] is None


def test_two_columns_of_one_name_are_refused_at_construction(tmp_path):
    """Whichever of the files has them."""
    parquet(tmp_path / "a.parquet", a=[1])
    pyarrow.parquet.write_table(pyarrow.table([[1], [2.0]], ["a", "a"]), tmp_path / "b.parquet")
    sources = match([str(tmp_path / "*.parquet")])
    with pytest.raises(ConfigurationError, match=r"cannot read .*b\.parquet as parquet: two columns have the name 'a'"):
        infer_schema(sources)
