"""Columns get types that hold everything that was seen in them."""

import io

import pyarrow
import pyarrow.parquet
import pytest

from headrace.beam.job.parquet import Columns, write_table


def written(*chunks):
    """What a file holds after chunks of rows were seen and written."""
    columns, file = Columns(), io.BytesIO()
    for rows in chunks:
        columns.see(rows)
    write_table(file, columns, chunks, lambda: None)
    return pyarrow.parquet.read_table(pyarrow.BufferReader(file.getvalue()))


def values(*chunks):
    return [row["x"] for row in written(*([{"x": value} for value in chunk] for chunk in chunks)).to_pylist()]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (([1, 2], [3]), [1, 2, 3]),
        (([None], [1], [None]), [None, 1, None]),
        (([1], [0.5]), [1.0, 0.5]),
        (([2**60 + 1], [0.5]), [float(2**60), 0.5]),
        (([1], ["a"], [None]), ["1", "a", None]),
        (([1, "a"],), ["1", "a"]),
        (([True], [1]), ["true", "1"]),
        (([2**70],), [str(2**70)]),
        (([[1]], [[0.5, None]], [[]]), [[1.0], [0.5, None], []]),
        (([[1]], [2]), ["[1]", "2"]),
        (([{"a": 1}], [{"b": "c"}]), [{"a": 1, "b": None}, {"a": None, "b": "c"}]),
        (([{}], [{}]), ["{}", "{}"]),
        (([[{}]],), ["[{}]"]),
        (([{"a": 1}], ["text"]), ['{"a": 1}', "text"]),
    ],
    ids=repr,
)
def test_types_that_hold_everything(chunks, expected):
    assert values(*chunks) == expected


def test_columns_stand_in_the_order_in_which_they_came():
    table = written([{"b": 1, "a": 2}], [{"c": 3, "a": 4}])
    assert table.column_names == ["b", "a", "c"]
    assert table.to_pylist()[1] == {"b": None, "a": 4, "c": 3}


def test_each_chunk_is_a_row_group():
    columns, file = Columns(), io.BytesIO()
    chunks = [[{"x": 1}], [{"x": 2}, {"x": 3}]]
    for rows in chunks:
        columns.see(rows)
    checks = []
    write_table(file, columns, chunks, lambda: checks.append(1))
    assert pyarrow.parquet.ParquetFile(pyarrow.BufferReader(file.getvalue())).num_row_groups == len(checks) == 2
