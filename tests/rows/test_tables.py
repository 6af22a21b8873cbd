"""Rows of tables have the values that they would have in a file."""

from __future__ import annotations

import datetime

import numpy
import pandas
import pyarrow
import pytest

from headrace import ConfigurationError
from headrace.rows.blocks import BrokenLine
from headrace.rows.tables import chosen, names_of, rows_of_table


def test_rows_keep_their_order_across_chunks():
    table = pyarrow.concat_tables([pyarrow.table({"n": range(start, start + 900)}) for start in (0, 900, 1800)])
    assert [row["n"] for row in rows_of_table(table)] == list(range(2700))
    assert [row["n"] for row in rows_of_table(table.to_pandas())] == list(range(2700))
    assert list(rows_of_table(table.slice(0, 0))) == list(rows_of_table(table.to_pandas()[:0])) == []


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pandas.Series([1.5, numpy.nan]), [1.5, None]),
        (pandas.Series([1, None], dtype="Int64"), [1, None]),
        (pandas.Series(["a", None], dtype="string"), ["a", None]),
        (pandas.Series(["a", "b"], dtype="category"), ["a", "b"]),
        (pandas.Series([True, False]), [True, False]),
        (pandas.Series([1j, 2j]), [1j, 2j]),
        (pandas.Series([1, "a", None, numpy.nan, pandas.NA, pandas.NaT], dtype=object), [1, "a", *[None] * 4]),
        (pandas.Series(pandas.to_datetime(["2026-01-02"])), [datetime.datetime(2026, 1, 2)]),
    ],
    ids=lambda column: str(getattr(column, "dtype", "")),
)
def test_columns_of_a_data_frame_become_python_values(column, values):
    assert [row["c"] for row in rows_of_table(pandas.DataFrame({"c": column}))] == values


def test_objects_of_a_data_frame_are_its_own():
    array = numpy.zeros(2)
    (row,) = rows_of_table(pandas.DataFrame({"c": [array]}))
    assert row["c"] is array


def test_row_without_python_equivalent_is_a_broken_line_and_nanoseconds_are_kept():
    good, bad = rows_of_table(pyarrow.table({"at": pyarrow.array([0, 2**62], pyarrow.timestamp("s"))}))
    assert good == {"at": datetime.datetime(1970, 1, 1)}
    assert isinstance(bad, BrokenLine)
    table = pyarrow.table({"at": pyarrow.array([1], pyarrow.timestamp("ns"))})
    assert list(rows_of_table(table)) == [{"at": "1970-01-01 00:00:00.000000001"}]


def test_frame_of_another_kind_comes_through_arrow():
    class Frame:
        columns = ("n",)

        def __arrow_c_stream__(self, requested_schema=None):
            return pyarrow.table({"n": [1, 2]}).__arrow_c_stream__(requested_schema)

    assert list(rows_of_table(Frame())) == [{"n": 1}, {"n": 2}]


def test_tables_without_rows_to_name_are_refused():
    class Unknown:
        columns = ("n",)

    with pytest.raises(ConfigurationError, match=r"takes data frames of pandas and tables of Arrow, and no .*Unknown"):
        names_of(Unknown())
    with pytest.raises(ConfigurationError, match="has no columns"):
        names_of(pandas.DataFrame())
    with pytest.raises(ConfigurationError, match="several columns 'a'"):
        names_of(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


def test_columns_are_chosen_by_name():
    names = ("text", "label", 0)
    assert chosen("columns", None, names) is None
    assert chosen("columns", "text", names) == ("text",)
    assert chosen("columns", 0, names) == (0,)
    assert chosen("columns", ["label", "text"], names) == ("label", "text")


def test_unknown_columns_are_refused():
    for asked, message in {
        "txet": r"columns: the table has no column 'txet'; did you mean 'text'\?",
        ("text", "x"): "columns: the table has no column 'x'; it has text, label.",
        (): "columns names no column; leave it out",
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            chosen("columns", asked, ("text", "label"))
