"""Rows of Parquet files: each as it is, or a row that cannot be read, alike in columns and row by row."""

import datetime

import pyarrow
import pyarrow.parquet
import pytest

from headrace.beam.job.files import match
from headrace.beam.job.parquet_rows import read_parquet
from headrace.beam.job.reading import peek
from headrace.beam.job.rows import BrokenLine
from headrace.core.errors import ConfigurationError

FAR = pyarrow.array([0, 10**7, 1], pyarrow.int32()).cast(pyarrow.date32())


def test_a_date_that_python_does_not_have_costs_its_row(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2, 3], "when": FAR}), path)
    first, far, last = read_parquet(match([str(path)])[0])
    assert (first, last["a"]) == ({"a": 1, "when": datetime.date(1970, 1, 1)}, 3)
    assert isinstance(far, BrokenLine)
    assert (far.line, far.number) == ("a: [ 2 ]\nwhen: [ 29349-01-26 ]", 2)


def test_in_columns_too(tmp_path, both_ways):
    path = tmp_path / "a.parquet"
    days = pyarrow.StructArray.from_arrays([FAR], ["day"])
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3], "nested": days}), path)
    _, letters, predictions, counts = both_ways(path)
    assert (predictions, counts) == (2, {("reading", "OverflowError"): 1})
    assert letters[0]["row"]["line_number"] == 2


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (lambda: pyarrow.table([[1], [2.0]], ["a", "a"]), "two columns have the name 'a', and a row can have one"),
        (
            lambda: pyarrow.table(
                {"a": [1], "b": [[{"c": 1}]]},
                schema=pyarrow.schema(
                    [("a", pyarrow.int64()), ("b", pyarrow.list_(pyarrow.struct([("c", pyarrow.int64())] * 2)))]
                ),
            ),
            "two fields of 'b.element' have the name 'c'",
        ),
    ],
)
def test_two_columns_of_one_name_are_refused_at_construction(tmp_path, table, error):
    """Whichever of the files has them."""
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "a.parquet")
    try:
        pyarrow.parquet.write_table(table(), tmp_path / "b.parquet")
    except (pyarrow.ArrowInvalid, ValueError):
        array = pyarrow.StructArray.from_arrays([pyarrow.array([1])] * 2, ["c", "c"])
        nested = pyarrow.ListArray.from_arrays([0, 1], array)
        pyarrow.parquet.write_table(pyarrow.table({"a": [1], "b": nested}), tmp_path / "b.parquet")
    sources = match([str(tmp_path / "*.parquet")])
    with pytest.raises(ConfigurationError, match=rf"cannot read .*b\.parquet as parquet: {error}.*rename one of them"):
        peek(sources)
